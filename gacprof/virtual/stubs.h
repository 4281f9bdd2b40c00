/* Functions that build.py writes; NOT_SUPPORTED is the library's own error. */
#include <stdio.h>
#include <stdlib.h>

/* Weak: a function that is written elsewhere takes the place. */
#define VISIBLE __attribute__((visibility("default"), weak))

/* Enough for every function: integers and pointers pass through unchanged, those not given too. */
#define PARAMETERS \
    long p0, long p1, long p2, long p3, long p4, long p5, long p6, long p7, long p8, long p9, \
    long p10, long p11
#define ARGUMENTS p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11

#ifdef RUNTIME
void gacprof_runtime_start(void);
int gacprof_runtime_result(int);
#define RESULT(call) (gacprof_runtime_start(), gacprof_runtime_result(call))
#else
#define RESULT(call) (call)
#endif

static int refuse(const char *name) {
    if (getenv("GACPROF_VIRTUAL_VERBOSE")) fprintf(stderr, "no %s on a virtual GPU\n", name);
    return NOT_SUPPORTED;
}

#define FORWARD(name, other) \
    int other(); \
    VISIBLE int name(PARAMETERS) { return RESULT(other(ARGUMENTS)); }
#define SUCCEED(name) VISIBLE int name() { return 0; }
#define REFUSE(name) VISIBLE int name() { return refuse(#name); }
