/* The driver's device, contexts and memory. Device memory is the host's: reserved, committed when
   touched. Functions are those of cuda.h; names that only succeed stand in libraries.toml. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include "virtual.h"
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ATTRIBUTES 256

/* ---- the device, from the environment ---- */
int gacprof_attribute[ATTRIBUTES] = {
    /* Alike on compute capability 8.0 to 12.0: CUDA C++ Programming Guide, compute capabilities. */
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = 49152,
    [CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 65536,
    [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 65536,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536,
    /* As deviceQuery prints them of every such device. */
    [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 3,
    [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
    [CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
    [CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = 1,
    [CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 1,
};
static char device_name[128] = "virtual GPU";
static size_t device_bytes;
#define DRIVER_BYTES ((size_t)512 << 20) /* of device memory, never free, as a context takes some */

/* GACPROF_VIRTUAL_DEVICE is "name;bytes of memory;attribute=value,attribute=value,…" (run.py). */
__attribute__((constructor)) static void read_device(void) {
    const char *text = getenv("GACPROF_VIRTUAL_DEVICE");
    int number, value, length = 0;
    if (!access("/dev/nvidiactl", F_OK) && !getenv("GACPROF_VIRTUAL_FORCE")) {
        fputs("gacprof: this machine has an NVIDIA driver; its stand-in stops\n", stderr);
        _exit(2);
    }
    if (!text || sscanf(text, "%127[^;];%zu;%n", device_name, &device_bytes, &length) < 2) {
        fputs("gacprof: the stand-in driver is started by `gacprof virtual` only\n", stderr);
        _exit(2);
    }
    for (text += length; sscanf(text, "%d=%d%n", &number, &value, &length) == 2;) {
        if (number >= 0 && number < ATTRIBUTES) gacprof_attribute[number] = value;
        text += length;
        if (*text == ',') text++;
    }
}

CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = 0;
    return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, length, "%s", device_name);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = device_bytes;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "gacprof virtual", 15);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    if ((unsigned)attribute >= ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    *value = gacprof_attribute[attribute];
    return CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    *major = gacprof_attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = gacprof_attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    snprintf(text, length, "0000:01:00.0");
    return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b) { *can = 0; return CUDA_SUCCESS; }

/* ---- entry points and errors ---- */
/* The function of that name of the newest version up to the one asked for. Undocumented tables
   (cuGetExportTable) are refused by the generated stub. */
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    *function = NULL;
    for (const struct gacprof_entry *e = gacprof_entries; e->name; e++)
        if (!strcmp(e->name, name) && e->version <= version) *function = e->function;
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    static _Thread_local char line[64];
    snprintf(line, sizeof line, "CUDA error %d of a virtual GPU", error);
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : line;
    return CUDA_SUCCESS;
}

/* ---- contexts: one, the primary; a stack a thread as the driver keeps it ---- */
struct CUctx_st {
    unsigned flags;
};
static struct CUctx_st primary;
static int primary_references;
static _Thread_local CUcontext context_stack[64];
static _Thread_local int context_depth;

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    primary_references++;
    *context = &primary;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (primary_references) primary_references--;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = primary.flags;
    *active = primary_references > 0;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = context_depth ? context_stack[context_depth - 1] : NULL;
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (context_depth == 64) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack[context_depth++] = context;
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (!context_depth) return CUDA_ERROR_INVALID_CONTEXT;
    context_depth--;
    if (context) *context = context_stack[context_depth];
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    if (context_depth) context_depth--;
    return context ? cuCtxPushCurrent_v2(context) : CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return context_depth ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */
#define PAGE ((size_t)2 << 20) /* the granularity of device memory */
struct allocation {
    uintptr_t address;
    size_t bytes, mapped_bytes;
    int host;
    unsigned long long id;
    struct allocation *next;
};
static struct allocation *allocations;
static size_t used_bytes;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t free_bytes(void) {
    size_t taken = used_bytes + DRIVER_BYTES;
    return taken < device_bytes ? device_bytes - taken : 0;
}
static void remember(uintptr_t address, size_t bytes, size_t mapped_bytes, int host) {
    static unsigned long long ids;
    struct allocation *a = malloc(sizeof *a);
    *a = (struct allocation){address, bytes, mapped_bytes, host, ++ids, allocations};
    allocations = a;
}
static CUresult allocate(uintptr_t *address, size_t bytes, int host) {
    size_t mapped_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    if (host || mapped_bytes <= free_bytes()) {
        char *p = mmap(NULL, mapped_bytes + PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) {
            *address = ((uintptr_t)p + PAGE - 1) / PAGE * PAGE;
            if (*address > (uintptr_t)p) munmap(p, *address - (uintptr_t)p);
            munmap((char *)*address + mapped_bytes, (uintptr_t)p + PAGE - *address);
            remember(*address, bytes, mapped_bytes, host);
            if (!host) used_bytes += mapped_bytes;
            result = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}
static CUresult release(uintptr_t address) {
    CUresult result = address ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    for (struct allocation **a = &allocations; *a; a = &(*a)->next) {
        struct allocation *old = *a;
        if (old->address != address) continue;
        *a = old->next;
        if (old->mapped_bytes) munmap((void *)address, old->mapped_bytes);
        if (!old->host) used_bytes -= old->mapped_bytes;
        free(old);
        result = CUDA_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = free_bytes();
    *total = device_bytes;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    return allocate((uintptr_t *)address, bytes, 0);
}
CUresult cuMemFree_v2(CUdeviceptr address) { return release(address); }
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    return allocate((uintptr_t *)address, bytes, 1);
}
CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    pthread_mutex_lock(&memory_lock);
    remember((uintptr_t)address, bytes, 0, 1);
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned flags) {
    *address = (CUdeviceptr)host;
    return CUDA_SUCCESS;
}
/* A copy of the allocation that holds an address; bytes 0 where none does. */
static struct allocation allocation_of(uintptr_t address) {
    struct allocation result = {0};
    pthread_mutex_lock(&memory_lock);
    for (struct allocation *a = allocations; a; a = a->next)
        if (address >= a->address && address < a->address + a->bytes) result = *a;
    pthread_mutex_unlock(&memory_lock);
    return result;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    struct allocation a = allocation_of(address);
    if (!a.bytes) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = a.address;
    if (bytes) *bytes = a.bytes;
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address) {
    struct allocation a = allocation_of(address);
    if (!a.bytes) return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = &primary; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = a.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = address; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)out = a.host ? (void *)address : NULL;
        return a.host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = a.id; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)out = 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = 0; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = a.address; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = a.bytes; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)out = 1; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    *pool = (CUmemoryPool)&primary;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    *(uint64_t *)value = 0;
    return CUDA_SUCCESS;
}

/* ---- copies and fills ---- */
void gacprof_capture_other(CUstream stream, CUgraphNodeType type);

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    memmove((void *)to, (void *)from, bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    gacprof_capture_other(stream, CU_GRAPH_NODE_TYPE_MEMCPY);
    return cuMemcpy(to, from, bytes);
}

/* Zeroes over many pages cost nothing: the pages are given back. */
static void fill(uintptr_t address, size_t count, unsigned value, int width) {
    size_t bytes = count * width;
    uintptr_t first = (address + 4095) & ~(uintptr_t)4095;
    uintptr_t last = (address + bytes) & ~(uintptr_t)4095;
    if (!value && bytes > PAGE && !madvise((void *)first, last - first, MADV_DONTNEED)) {
        memset((void *)address, 0, first - address);
        memset((void *)last, 0, address + bytes - last);
        return;
    }
    for (size_t i = 0; i < count; i++) memcpy((char *)address + i * width, &value, width);
}
#define FILLS(name, Value, width)                                                                  \
    CUresult name##_v2(CUdeviceptr address, Value value, size_t count) {                           \
        fill(address, count, value, width);                                                        \
        return CUDA_SUCCESS;                                                                       \
    }                                                                                              \
    CUresult name##Async(CUdeviceptr address, Value value, size_t count, CUstream stream) {        \
        gacprof_capture_other(stream, CU_GRAPH_NODE_TYPE_MEMSET);                                  \
        return name##_v2(address, value, count);                                                   \
    }
FILLS(cuMemsetD8, unsigned char, 1)
FILLS(cuMemsetD16, unsigned short, 2)
FILLS(cuMemsetD32, unsigned, 4)
