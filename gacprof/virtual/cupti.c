/* CUPTI's activity API for PyTorch's profiler: each launch that the driver noted as two records of
   one correlation id, the host's call and its kernel. Their times are no kernel's: both start when
   noted, a microsecond long. */
#include "virtual.h"
#include <cupti.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUpti_BuffersCallbackRequestFunc request_buffer;
static CUpti_BuffersCallbackCompleteFunc complete_buffer;
static size_t next_launch; /* the first not handed over */
static uint8_t *buffer;    /* asked for before the first launch: without one Kineto flushes nothing */
static size_t buffer_bytes;
#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 Kernel;
#else
typedef CUpti_ActivityKernel9 Kernel;
#endif

static void want_buffer(void) {
    size_t max_records;
    if (!buffer && request_buffer) request_buffer(&buffer, &buffer_bytes, &max_records);
}
VISIBLE CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                   CUpti_BuffersCallbackCompleteFunc complete) {
    request_buffer = request;
    complete_buffer = complete;
    return CUPTI_SUCCESS;
}
VISIBLE CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
    gacprof_profiler((uint64_t(*)(void))clock, want_buffer); /* records by another clock are dropped */
    return CUPTI_SUCCESS;
}
VISIBLE CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) next_launch = gacprof_launch_count();
    return CUPTI_SUCCESS;
}
/* A record of the host's call takes as much room as a kernel's. */
static void write_call(CUpti_ActivityAPI *c, const struct gacprof_launch *l) {
    memset(c, 0, sizeof(Kernel));
    c->kind = CUPTI_ACTIVITY_KIND_RUNTIME;
    c->cbid = CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000;
    c->processId = (uint32_t)getpid();
    c->threadId = (uint32_t)pthread_self();
    c->correlationId = l->correlation;
    c->start = l->time_ns;
    c->end = l->time_ns + 1000;
}
static void write_kernel(Kernel *k, const struct gacprof_launch *l) {
    memset(k, 0, sizeof *k);
    k->kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    k->name = l->kernel;
    k->gridX = l->grid[0], k->gridY = l->grid[1], k->gridZ = l->grid[2];
    k->blockX = l->block[0], k->blockY = l->block[1], k->blockZ = l->block[2];
    k->clusterX = l->cluster[0], k->clusterY = l->cluster[1], k->clusterZ = l->cluster[2];
    k->dynamicSharedMemory = l->shared_bytes;
    k->correlationId = l->correlation;
    k->start = l->time_ns;
    k->end = k->completed = l->time_ns + 1000;
    k->contextId = 1;
    k->streamId = 7;
}
VISIBLE CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    size_t count = gacprof_launch_count();
    if (next_launch > count) next_launch = 0; /* the launches were cleared */
    while (next_launch < count) {
        size_t used = 0;
        want_buffer();
        if (!buffer || buffer_bytes < 2 * sizeof(Kernel)) break;
        for (; next_launch < count && used + 2 * sizeof(Kernel) <= buffer_bytes; next_launch++) {
            Kernel *records = (Kernel *)(buffer + used);
            write_call((CUpti_ActivityAPI *)records, gacprof_launch_at(next_launch));
            write_kernel(records + 1, gacprof_launch_at(next_launch));
            used += 2 * sizeof(Kernel);
        }
        complete_buffer(NULL, 0, buffer, buffer_bytes, used);
        buffer = NULL;
    }
    return CUPTI_SUCCESS;
}
VISIBLE CUptiResult cuptiActivityGetNextRecord(uint8_t *records, size_t valid_bytes,
                                               CUpti_Activity **record) {
    uint8_t *next = *record ? (uint8_t *)*record + sizeof(Kernel) : records;
    if (next + sizeof(Kernel) > records + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
VISIBLE CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t function,
                                         const char **name) {
    *name = "cudaLaunchKernel_v7000"; /* the only call that is recorded */
    return CUPTI_SUCCESS;
}
VISIBLE CUptiResult cuptiGetVersion(uint32_t *version) {
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}
