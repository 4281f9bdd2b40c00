/* The CUDA runtime of cuda_runtime_api.h on top of the driver. Functions that stand for one of the
   driver's are in libraries.toml. */
#include "virtual.h"
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local cudaError_t last_error;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Make the primary context current, as the runtime does on a thread's first call. */
void gacprof_runtime_start(void) {
    CUcontext context = NULL;
    cuCtxGetCurrent(&context);
    if (context) return;
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
}
cudaError_t gacprof_runtime_result(int result) {
    if (result) last_error = (cudaError_t)result;
    return (cudaError_t)result;
}
#define RESULT(call) gacprof_runtime_result(call)

/* ---- code that a program registers when it is loaded: host address -> kernel or variable ---- */
struct binary {
    const void *code;
    CUmodule module;
};
struct symbol {
    const void *host;
    const char *name;
    struct binary *binary;
    void *handle; /* CUfunction or address, when first asked for */
};
static struct symbol *symbols; /* open addressing */
static size_t symbol_count, symbol_room;

static struct symbol *slot_of(const void *host) {
    size_t i = ((uintptr_t)host >> 4) * 0x9E3779B97F4A7C15u;
    while (symbols[i & (symbol_room - 1)].host && symbols[i & (symbol_room - 1)].host != host) i++;
    return &symbols[i & (symbol_room - 1)];
}
static void add_symbol(struct symbol s) {
    pthread_mutex_lock(&lock);
    if (2 * symbol_count >= symbol_room) {
        struct symbol *old = symbols;
        size_t old_room = symbol_room;
        symbol_room = symbol_room ? 2 * symbol_room : 1 << 16;
        symbols = calloc(symbol_room, sizeof *symbols);
        for (size_t i = 0; i < old_room; i++)
            if (old[i].host) *slot_of(old[i].host) = old[i];
        free(old);
    }
    symbol_count += !slot_of(s.host)->host;
    *slot_of(s.host) = s;
    pthread_mutex_unlock(&lock);
}
static CUmodule module_of(struct binary *binary) {
    gacprof_runtime_start();
    if (!binary->module) cuModuleLoadData(&binary->module, binary->code);
    return binary->module;
}
/* The driver's function of a host stub; a kernel handle is one already. */
static CUfunction function_of(const void *host) {
    struct symbol *s = symbol_room ? slot_of(host) : NULL;
    if (!s || !s->host) return (CUfunction)host;
    if (!s->handle) cuModuleGetFunction((CUfunction *)&s->handle, module_of(s->binary), s->name);
    return s->handle;
}
VISIBLE void **__cudaRegisterFatBinary(const void *code) {
    struct binary *binary = calloc(1, sizeof *binary);
    binary->code = code;
    return (void **)binary;
}
VISIBLE void __cudaRegisterFatBinaryEnd(void **binary) {}
VISIBLE void __cudaUnregisterFatBinary(void **binary) {}
VISIBLE char __cudaInitModule(void **binary) { return 1; }
VISIBLE void __cudaRegisterFunction(void **binary, const void *host, char *device,
                                    const char *name) {
    add_symbol((struct symbol){host, name, (struct binary *)binary, NULL});
}
VISIBLE void __cudaRegisterVar(void **binary, const void *host, char *device, const char *name) {
    __cudaRegisterFunction(binary, host, device, name);
}
VISIBLE cudaError_t __cudaGetKernel(CUfunction *kernel, const void *host) {
    *kernel = function_of(host);
    return cudaSuccess;
}

/* ---- launches ---- */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} configurations[16];
static _Thread_local int configuration_count;

VISIBLE unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                             cudaStream_t stream) {
    int i = configuration_count++ & 15;
    configurations[i].grid = grid;
    configurations[i].block = block;
    configurations[i].shared_bytes = shared_bytes;
    configurations[i].stream = stream;
    return 0;
}
VISIBLE cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes,
                                               cudaStream_t *stream) {
    int i = --configuration_count & 15;
    *grid = configurations[i].grid;
    *block = configurations[i].block;
    *shared_bytes = configurations[i].shared_bytes;
    *stream = configurations[i].stream;
    return cudaSuccess;
}
VISIBLE cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                                     size_t shared_bytes, cudaStream_t stream) {
    return RESULT(cuLaunchKernel(function_of(host), grid.x, grid.y, grid.z, block.x, block.y,
                                 block.z, shared_bytes, stream, arguments, NULL));
}
VISIBLE cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host,
                                        void **arguments) {
    CUlaunchConfig config = {
        c->gridDim.x, c->gridDim.y, c->gridDim.z, c->blockDim.x, c->blockDim.y, c->blockDim.z,
        c->dynamicSmemBytes, c->stream, (CUlaunchAttribute *)c->attrs, c->numAttrs};
    return RESULT(cuLaunchKernelEx(&config, function_of(host), arguments, NULL));
}
VISIBLE cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
    CUfunction f = function_of(host);
    memset(attributes, 0, sizeof *attributes);
    cuFuncGetAttribute(&attributes->maxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f);
    cuFuncGetAttribute(&attributes->ptxVersion, CU_FUNC_ATTRIBUTE_PTX_VERSION, f);
    cuFuncGetAttribute(&attributes->binaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION, f);
    cuFuncGetAttribute(&attributes->maxDynamicSharedSizeBytes,
                       CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f);
    return cudaSuccess;
}
VISIBLE cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute,
                                         int value) {
    CUfunction f = function_of(host);
    return RESULT(cuFuncSetAttribute(f, (CUfunction_attribute)attribute, value));
}
VISIBLE cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *host, int threads, size_t shared_bytes, unsigned flags) {
    return RESULT(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks, function_of(host), threads, shared_bytes, flags));
}
VISIBLE cudaError_t cudaGetSymbolAddress(void **address, const void *host) {
    struct symbol *s = symbol_room ? slot_of(host) : NULL;
    if (!s || !s->host) return RESULT(cudaErrorInvalidSymbol);
    if (!s->handle)
        cuModuleGetGlobal((CUdeviceptr *)&s->handle, NULL, module_of(s->binary), s->name);
    *address = s->handle;
    return cudaSuccess;
}
VISIBLE cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t bytes,
                                       size_t offset, enum cudaMemcpyKind kind) {
    void *address;
    cudaError_t result = cudaGetSymbolAddress(&address, host);
    if (!result) memcpy((char *)address + offset, from, bytes);
    return result;
}

/* ---- device, errors ---- */
VISIBLE cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
VISIBLE cudaError_t cudaSetDevice(int device) {
    gacprof_runtime_start();
    return device ? RESULT(cudaErrorInvalidDevice) : cudaSuccess;
}
VISIBLE cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    const struct {
        int *field, attribute;
    } fields[] = {
#define FIELD(field, attribute) {(int *)&p->field, CU_DEVICE_ATTRIBUTE_##attribute}
        FIELD(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
        FIELD(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        FIELD(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        FIELD(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
        FIELD(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
        FIELD(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
        FIELD(warpSize, WARP_SIZE),
        FIELD(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
        FIELD(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
        FIELD(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
        FIELD(maxThreadsDim[0], MAX_BLOCK_DIM_X),
        FIELD(maxThreadsDim[1], MAX_BLOCK_DIM_Y),
        FIELD(maxThreadsDim[2], MAX_BLOCK_DIM_Z),
        FIELD(maxGridSize[0], MAX_GRID_DIM_X),
        FIELD(maxGridSize[1], MAX_GRID_DIM_Y),
        FIELD(maxGridSize[2], MAX_GRID_DIM_Z),
        FIELD(major, COMPUTE_CAPABILITY_MAJOR),
        FIELD(minor, COMPUTE_CAPABILITY_MINOR),
        FIELD(textureAlignment, TEXTURE_ALIGNMENT),
        FIELD(multiProcessorCount, MULTIPROCESSOR_COUNT),
        FIELD(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH),
        FIELD(l2CacheSize, L2_CACHE_SIZE),
        FIELD(cooperativeLaunch, COOPERATIVE_LAUNCH),
        FIELD(clusterLaunch, CLUSTER_LAUNCH),
        FIELD(pciBusID, PCI_BUS_ID),
    };
    if (device) return RESULT(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    cuDeviceGetName(p->name, sizeof p->name, 0);
    cuDeviceGetUuid((CUuuid *)&p->uuid, 0);
    cuDeviceTotalMem(&p->totalGlobalMem, 0);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        cuDeviceGetAttribute(fields[i].field, fields[i].attribute, 0);
    return cudaSuccess;
}
VISIBLE cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
VISIBLE cudaError_t cudaPeekAtLastError(void) { return last_error; }
VISIBLE const char *cudaGetErrorString(cudaError_t error) {
    const char *text = "no error";
    if (error) cuGetErrorString((CUresult)error, &text);
    return text;
}
VISIBLE const char *cudaGetErrorName(cudaError_t error) {
    return error ? cudaGetErrorString(error) : "cudaSuccess";
}
VISIBLE cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function,
                                                     unsigned version, unsigned long long flags,
                                                     enum cudaDriverEntryPointQueryResult *status) {
    CUdriverProcAddressQueryResult query;
    CUresult result = cuGetProcAddress(name, function, version, flags, &query);
    if (status) *status = (enum cudaDriverEntryPointQueryResult)query;
    return status ? cudaSuccess : RESULT(result);
}
#if CUDART_VERSION < 13000
VISIBLE cudaError_t cudaGetDriverEntryPoint(const char *name, void **function,
                                            unsigned long long flags,
                                            enum cudaDriverEntryPointQueryResult *status) {
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, status);
}
#endif

/* ---- memory, streams and events whose arguments differ from the driver's ---- */
VISIBLE cudaError_t cudaMalloc(void **address, size_t bytes) {
    gacprof_runtime_start();
    *address = NULL;
    return bytes ? RESULT(cuMemAlloc((CUdeviceptr *)address, bytes)) : cudaSuccess;
}
VISIBLE cudaError_t cudaFree(void *address) {
    gacprof_runtime_start();
    return RESULT(cuMemFree((CUdeviceptr)address));
}
VISIBLE cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                    enum cudaMemcpyKind kind, cudaStream_t stream) {
    return RESULT(cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream));
}
VISIBLE cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
                                      size_t from_pitch, size_t width, size_t height,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t result = cudaSuccess;
    for (size_t y = 0; y < height && !result; y++)
        result = cudaMemcpyAsync((char *)to + y * to_pitch, (const char *)from + y * from_pitch,
                                 width, kind, stream);
    return result;
}
VISIBLE cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                             const void *address) {
    unsigned type = 0;
    memset(attributes, 0, sizeof *attributes);
    if (!cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)address)) {
        attributes->type = type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
        attributes->devicePointer = (void *)address;
    }
    if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = (void *)address;
    return cudaSuccess;
}
VISIBLE cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return RESULT(cuStreamCreate(stream, 0));
}
VISIBLE cudaError_t cudaEventCreate(cudaEvent_t *event) { return RESULT(cuEventCreate(event, 0)); }
