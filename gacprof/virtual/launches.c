/* The driver's kernels, streams, events and graphs: launches are noted, nothing runs. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include "virtual.h"
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern int gacprof_attribute[];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- modules: a module is the names that were asked of it; code is not read ---- */
struct CUfunc_st {
    struct CUmod_st *module;
    char *name;
    int max_dynamic_shared_bytes;
    struct CUfunc_st *next;
};
struct global {
    char *name;
    CUdeviceptr address;
    struct global *next;
};
struct CUmod_st {
    struct CUfunc_st *functions;
    struct global *globals;
};
#define GLOBAL_BYTES 65536 /* given to every device variable: constant memory's size, the largest */

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    struct CUfunc_st *f;
    pthread_mutex_lock(&lock);
    for (f = module->functions; f && strcmp(f->name, name);) f = f->next;
    if (!f) {
        f = malloc(sizeof *f);
        *f = (struct CUfunc_st){module, strdup(name), 49152, module->functions};
        module->functions = f;
    }
    pthread_mutex_unlock(&lock);
    *out = f;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
                              const char *name) {
    struct global *g;
    pthread_mutex_lock(&lock);
    for (g = module->globals; g && strcmp(g->name, name);) g = g->next;
    if (!g) {
        g = calloc(1, sizeof *g);
        g->name = strdup(name);
        g->next = module->globals;
        cuMemAlloc_v2(&g->address, GLOBAL_BYTES);
        module->globals = g;
    }
    pthread_mutex_unlock(&lock);
    if (address) *address = g->address;
    if (bytes) *bytes = GLOBAL_BYTES;
    return g->address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    *module = calloc(1, sizeof **module);
    return CUDA_SUCCESS;
}
/* A library of a file has one kernel, as what engines compile at run time: it is called as the file,
   whose folder they name by the kernel. */
CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
                               void **values, unsigned count, CUlibraryOption *library_options,
                               void **library_values, unsigned library_count) {
    CUfunction kernel;
    cuModuleLoadData((CUmodule *)library, path);
    return cuModuleGetFunction(&kernel, (CUmodule)*library, path);
}
CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
    *count = ((CUmodule)library)->functions != NULL;
    return CUDA_SUCCESS;
}
CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
    if (count) *kernels = (CUkernel)((CUmodule)library)->functions;
    return CUDA_SUCCESS;
}
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    *module = (CUmodule)library;
    return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetName(const char **name, CUfunction function) {
    *name = function->name;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
    *module = function->module;
    return CUDA_SUCCESS;
}

/* ---- functions: limits and occupancy; registers are not known and limit nothing ---- */
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    int limit = gacprof_attribute[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN];
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value > limit) return CUDA_ERROR_INVALID_VALUE;
        function->max_dynamic_shared_bytes = value;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
    if (attribute < CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET) return CUDA_ERROR_INVALID_VALUE;
    return attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
    return cuFuncSetAttribute((CUfunction)kernel, attribute, value);
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    *value = 0;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) *value = 1024;
    if (attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION || attribute == CU_FUNC_ATTRIBUTE_BINARY_VERSION)
        *value = gacprof_attribute[GACPROF_CODE];
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) *value = -1;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        *value = function->max_dynamic_shared_bytes;
    return CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice device) {
    return cuFuncGetAttribute(value, attribute, (CUfunction)kernel);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
                                                              int threads, size_t shared_bytes,
                                                              unsigned flags) {
    const int *device = gacprof_attribute;
    size_t reserved = device[CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK];
    size_t shared = device[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR];
    int warps = device[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] / 32;
    int by_shared = (int)(shared / (shared_bytes + reserved));
    *blocks = device[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR];
    if (warps / ((threads + 31) / 32) < *blocks) *blocks = warps / ((threads + 31) / 32);
    if (by_shared < *blocks) *blocks = by_shared;
    return CUDA_SUCCESS;
}
static void read_launch(struct gacprof_launch *l, const CUlaunchConfig *config);
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                      const CUlaunchConfig *config) {
    struct gacprof_launch l;
    int blocks;
    read_launch(&l, config);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        &blocks, function, l.block[0] * l.block[1] * l.block[2], l.shared_bytes, 0);
    *clusters = blocks * gacprof_attribute[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]
                / (int)(l.cluster[0] * l.cluster[1] * l.cluster[2]);
    return CUDA_SUCCESS;
}
/* The CUDA Driver API's page of this function asks for 16-byte alignment of address and strides. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *address, const cuuint64_t *dims, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    memset(map, 0, sizeof *map);
    if ((uintptr_t)address % 16) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned d = 1; d < rank; d++)
        if (strides[d - 1] % 16) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* ---- streams and graphs: a captured stream adds its launches to a graph ---- */
struct CUgraphNode_st {
    CUgraphNodeType type;
    struct gacprof_launch launch;
};
struct CUgraph_st {
    CUgraphNode *nodes;
    size_t count, room;
};
struct CUgraphExec_st {
    CUgraph graph;
};
struct CUstream_st {
    int priority;
    unsigned long long capture_id;
    CUgraph capture;
    CUgraphNode last;
};
struct CUevent_st {
    double time_us;
    struct CUstream_st recorded; /* the stream's capture when the event was recorded */
};
static struct CUstream_st legacy_stream, thread_stream;
static unsigned long long capture_count;
static double clock_us; /* a model, not a time: a microsecond a launch */

static CUstream stream_of(CUstream stream) {
    if (stream == CU_STREAM_PER_THREAD) return &thread_stream;
    return !stream || stream == CU_STREAM_LEGACY ? &legacy_stream : stream;
}
static void capture_node(CUstream stream, CUgraphNodeType type, const struct gacprof_launch *l) {
    CUstream s = stream_of(stream);
    CUgraph g = s->capture;
    if (!g) return;
    s->last = calloc(1, sizeof *s->last);
    s->last->type = type;
    if (l) s->last->launch = *l;
    if (g->count == g->room) {
        g->room = 2 * g->room + 16;
        g->nodes = realloc(g->nodes, g->room * sizeof *g->nodes);
    }
    g->nodes[g->count++] = s->last;
}
void gacprof_capture_other(CUstream stream, CUgraphNodeType type) {
    capture_node(stream, type, NULL);
}

/* ---- launches ---- */
static struct gacprof_launch *launches;
static size_t launch_count, launch_room;
static uint64_t (*profiler_clock)(void);
static void (*profiler_before_launch)(void);

static void note_launch(const struct gacprof_launch *l) {
    static unsigned correlations;
    struct timespec now;
    if (profiler_before_launch) profiler_before_launch();
    clock_gettime(CLOCK_REALTIME, &now);
    pthread_mutex_lock(&lock);
    if (launch_count == launch_room) {
        launch_room = 2 * launch_room + 1024;
        launches = realloc(launches, launch_room * sizeof *launches);
    }
    launches[launch_count] = *l;
    launches[launch_count].correlation = ++correlations;
    launches[launch_count].time_ns =
        profiler_clock ? profiler_clock() : (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    launch_count++;
    clock_us += 1;
    pthread_mutex_unlock(&lock);
}
static CUresult launch(const struct gacprof_launch *l, CUfunction function, CUstream stream) {
    size_t threads = (size_t)l->block[0] * l->block[1] * l->block[2];
    if (!threads || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    if (!l->grid[0] || !l->grid[1] || !l->grid[2]) return CUDA_ERROR_INVALID_VALUE;
    if (l->grid[1] > 65535 || l->grid[2] > 65535) return CUDA_ERROR_INVALID_VALUE;
    if ((int)l->shared_bytes > function->max_dynamic_shared_bytes) return CUDA_ERROR_INVALID_VALUE;
    note_launch(l);
    capture_node(stream, CU_GRAPH_NODE_TYPE_KERNEL, l);
    return CUDA_SUCCESS;
}
static void read_launch(struct gacprof_launch *l, const CUlaunchConfig *c) {
    *l = (struct gacprof_launch){.grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
                                 .block = {c->blockDimX, c->blockDimY, c->blockDimZ},
                                 .cluster = {1, 1, 1},
                                 .shared_bytes = c->sharedMemBytes};
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
        l->cluster[0] = c->attrs[i].value.clusterDim.x;
        l->cluster[1] = c->attrs[i].value.clusterDim.y;
        l->cluster[2] = c->attrs[i].value.clusterDim.z;
    }
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra) {
    struct gacprof_launch l;
    read_launch(&l, config);
    l.kernel = function->name;
    return launch(&l, function, config->hStream);
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **parameters, void **extra) {
    CUlaunchConfig config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                             block_z, shared_bytes, stream, NULL,    0};
    return cuLaunchKernelEx(&config, function, parameters, extra);
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    if (stream_of(stream)->capture)
        capture_node(stream, CU_GRAPH_NODE_TYPE_HOST, NULL);
    else
        function(data);
    return CUDA_SUCCESS;
}

/* ---- streams ---- */
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    *stream = calloc(1, sizeof **stream);
    (*stream)->priority = priority;
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}
CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    *priority = stream_of(stream)->priority;
    return CUDA_SUCCESS;
}
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data,
                             unsigned flags) {
    callback(stream, CUDA_SUCCESS, data);
    return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    CUstream s = stream_of(stream);
    if (!event->recorded.capture || s->capture) return CUDA_SUCCESS;
    s->capture = event->recorded.capture; /* the waiting stream joins the capture */
    s->last = event->recorded.last;
    s->capture_id = event->recorded.capture_id;
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    CUstream s = stream_of(stream);
    if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    s->capture = calloc(1, sizeof *s->capture);
    s->last = NULL;
    s->capture_id = ++capture_count;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CUstream s = stream_of(stream);
    if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    *graph = s->capture;
    s->capture = NULL;
    return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = stream_of(stream)->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                         : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   const CUgraphEdgeData **edges, size_t *count) {
    static const CUgraphEdgeData plain_edge;
    CUstream s = stream_of(stream);
    cuStreamIsCapturing(s, status);
    if (!s->capture) return CUDA_SUCCESS;
    if (id) *id = s->capture_id;
    if (graph) *graph = s->capture;
    if (dependencies) *dependencies = &s->last;
    if (edges) *edges = &plain_edge;
    if (count) *count = s->last ? 1 : 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   size_t *count) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL, count);
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    static _Thread_local CUstreamCaptureMode current;
    CUstreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* ---- events: their times are the model's, never a latency ---- */
CUresult cuEventCreate(CUevent *event, unsigned flags) {
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
    event->time_us = clock_us;
    event->recorded = *stream_of(stream);
    return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    *ms = (float)((end->time_us - start->time_us) / 1000);
    return CUDA_SUCCESS;
}

/* ---- graphs ---- */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                     unsigned long long flags) {
    *executable = calloc(1, sizeof **executable);
    (*executable)->graph = graph;
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    CUgraph graph = executable->graph;
    for (size_t i = 0; i < graph->count; i++) {
        struct gacprof_launch l = graph->nodes[i]->launch;
        l.replay = 1;
        if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_KERNEL) note_launch(&l);
    }
    return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    for (size_t i = 0; nodes && i < *count && i < graph->count; i++) nodes[i] = graph->nodes[i];
    *count = graph->count;
    return CUDA_SUCCESS;
}
CUresult cuUserObjectCreate(CUuserObject *object, void *data, CUhostFn destroy, unsigned references,
                            unsigned flags) {
    *object = calloc(1, 8);
    return CUDA_SUCCESS;
}

/* ---- what the other stand-ins and Python read ---- */
size_t gacprof_launch_count(void) { return launch_count; }
const struct gacprof_launch *gacprof_launch_at(size_t index) { return &launches[index]; }
void gacprof_launch_clear(void) { launch_count = 0; }
void gacprof_profiler(uint64_t (*clock)(void), void (*before_launch)(void)) {
    profiler_clock = clock;
    profiler_before_launch = before_launch;
}
void gacprof_launch_text(const char *text, void *stream) {
    static struct CUmod_st texts;
    CUfunction function;
    struct gacprof_launch l = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .cluster = {1, 1, 1}};
    cuModuleGetFunction(&function, &texts, text);
    l.kernel = function->name;
    launch(&l, function, stream);
}
