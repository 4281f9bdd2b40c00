/* What the driver tells the other stand-ins and Python: the launches that were noted. */
#ifndef GACPROF_VIRTUAL_H
#define GACPROF_VIRTUAL_H
#include <stddef.h>
#include <stdint.h>

#define VISIBLE __attribute__((visibility("default")))

struct gacprof_launch {
    const char *kernel; /* mangled; of a stood-in library, a line of text */
    unsigned grid[3], block[3], cluster[3];
    unsigned shared_bytes; /* dynamic, a block */
    unsigned replay;       /* 1: launched by a graph */
    unsigned correlation;  /* counts from 1, never reset */
    uint64_t time_ns;      /* when it was noted, by the profiler's clock if there is one */
};

VISIBLE size_t gacprof_launch_count(void);
VISIBLE const struct gacprof_launch *gacprof_launch_at(size_t index);
VISIBLE void gacprof_launch_clear(void);
VISIBLE void gacprof_launch_text(const char *text, void *stream); /* a call of a stood-in library */
VISIBLE void gacprof_profiler(uint64_t (*clock)(void), void (*before_launch)(void));

/* Of the device's attributes: the architecture whose compiled code it runs, 86 on an 8.9. */
#define GACPROF_CODE 255

/* Driver functions by name and CUDA version, generated from cudaTypedefs.h (build.py). */
struct gacprof_entry {
    const char *name;
    int version;
    void *function;
};
extern const struct gacprof_entry gacprof_entries[];
#endif
