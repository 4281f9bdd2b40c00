/* cuBLAS and cuBLASLt: notes what each product was asked as. It computes nothing and does not know
   which kernel cuBLAS would take. */
#include "virtual.h"
#include <cublasLt.h>
#include <cublas_v2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cublasContext {
    cudaStream_t stream;
    cublasPointerMode_t pointer_mode;
    cublasMath_t math_mode;
};
struct matrix {
    const void *address;
    int type;
    long leading; /* the leading dimension, in elements */
};

static const char *type_name(int type) {
    switch (type) {
    case CUDA_R_16BF: return "bfloat16";
    case CUDA_R_16F: return "float16";
    case CUDA_R_32F: return "float32";
    case CUDA_R_8I: return "int8";
    case CUDA_R_32I: return "int32";
    case CUDA_R_8F_E4M3: return "float8_e4m3";
    default: return "other";
    }
}
static int alignment(const void *address) { /* bytes, up to 256 */
    uintptr_t bits = (uintptr_t)address | 256;
    return (int)(bits & -bits);
}
/* A is m x k, B is k x n, C is m x n, stored by columns; transposed: 0 N, 1 T, 2 C. */
static cublasStatus_t note(cudaStream_t stream, int transposed_a, int transposed_b, long m, long n,
                           long k, struct matrix a, struct matrix b, struct matrix c, int batch) {
    char text[256];
    snprintf(text, sizeof text,
             "cublas %c%c m=%ld n=%ld k=%ld a=%s b=%s c=%s lda=%ld ldb=%ld ldc=%ld align=%d,%d,%d "
             "batch=%d",
             "NTC"[transposed_a], "NTC"[transposed_b], m, n, k, type_name(a.type),
             type_name(b.type), type_name(c.type), a.leading, b.leading, c.leading,
             alignment(a.address), alignment(b.address), alignment(c.address), batch);
    gacprof_launch_text(text, stream);
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = calloc(1, sizeof **handle);
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
    *mode = handle->pointer_mode;
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
    *mode = handle->math_mode;
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    handle->math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
    const void *alpha, const void *a, cudaDataType at, int lda, long long stride_a, const void *b,
    cudaDataType bt, int ldb, long long stride_b, const void *beta, void *c, cudaDataType ct,
    int ldc, long long stride_c, int batch, cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    return note(handle->stream, ta, tb, m, n, k, (struct matrix){a, at, lda},
                (struct matrix){b, bt, ldb}, (struct matrix){c, ct, ldc}, batch);
}
VISIBLE cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta,
                                    cublasOperation_t tb, int m, int n, int k, const void *alpha,
                                    const void *a, cudaDataType at, int lda, const void *b,
                                    cudaDataType bt, int ldb, const void *beta, void *c,
                                    cudaDataType ct, int ldc, cublasComputeType_t compute,
                                    cublasGemmAlgo_t algorithm) {
    return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0,
                                      beta, c, ct, ldc, 0, 1, compute, algorithm);
}
VISIBLE cublasStatus_t cublasSgemmStridedBatched(
    cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
    const float *alpha, const float *a, int lda, long long stride_a, const float *b, int ldb,
    long long stride_b, const float *beta, float *c, int ldc, long long stride_c, int batch) {
    return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, CUDA_R_32F, lda, stride_a,
                                      b, CUDA_R_32F, ldb, stride_b, beta, c, CUDA_R_32F, ldc,
                                      stride_c, batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
VISIBLE cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t ta,
                                      cublasOperation_t tb, int m, int n, int k, const float *alpha,
                                      const float *a, int lda, const float *b, int ldb,
                                      const float *beta, float *c, int ldc) {
    return cublasSgemmStridedBatched(handle, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c,
                                     ldc, 0, 1);
}
/* Declared for C++ alone, of whose type half is here only the address. */
VISIBLE cublasStatus_t cublasHgemm(cublasHandle_t handle, cublasOperation_t ta,
                                   cublasOperation_t tb, int m, int n, int k, const void *alpha,
                                   const void *a, int lda, const void *b, int ldb,
                                   const void *beta, void *c, int ldc) {
    return cublasGemmEx(handle, ta, tb, m, n, k, alpha, a, CUDA_R_16F, lda, b, CUDA_R_16F, ldb,
                        beta, c, CUDA_R_16F, ldc, CUBLAS_COMPUTE_16F, CUBLAS_GEMM_DEFAULT);
}

/* ---- cublasLt: descriptors, layouts and preferences keep what was set ---- */
struct object {
    int type;
    long rows, columns, leading;
    unsigned char attributes[64][8];
};
static struct object *new_object(int type, long rows, long columns, long leading) {
    struct object *object = calloc(1, sizeof *object);
    *object = (struct object){.type = type, .rows = rows, .columns = columns, .leading = leading};
    return object;
}
VISIBLE size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
VISIBLE cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = (cublasLtHandle_t)new_object(0, 0, 0, 0);
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *descriptor,
                                                cublasComputeType_t compute, cudaDataType_t scale) {
    *descriptor = (cublasLtMatmulDesc_t)new_object(compute, 0, 0, 0);
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout,
                                                  cudaDataType type, uint64_t rows,
                                                  uint64_t columns, int64_t leading) {
    *layout = (cublasLtMatrixLayout_t)new_object(type, rows, columns, leading);
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor,
                                                      cublasLtMatmulDescAttributes_t attribute,
                                                      const void *value, size_t bytes) {
    struct object *object = (struct object *)descriptor;
    if ((unsigned)attribute < 64 && bytes <= 8) memcpy(object->attributes[attribute], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) {
    free(descriptor);
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int room, cublasLtMatmulHeuristicResult_t *results,
    int *count) {
    memset(results, 0, room * sizeof *results);
    *count = room > 0;
    return CUBLAS_STATUS_SUCCESS;
}
VISIBLE cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor,
                                      const void *alpha, const void *a,
                                      cublasLtMatrixLayout_t a_layout, const void *b,
                                      cublasLtMatrixLayout_t b_layout, const void *beta,
                                      const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                      cublasLtMatrixLayout_t d_layout,
                                      const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                                      size_t workspace_bytes, cudaStream_t stream) {
    struct object *product = (struct object *)descriptor, *am = (struct object *)a_layout;
    struct object *bm = (struct object *)b_layout, *dm = (struct object *)d_layout;
    int ta = *(int *)product->attributes[CUBLASLT_MATMUL_DESC_TRANSA];
    int tb = *(int *)product->attributes[CUBLASLT_MATMUL_DESC_TRANSB];
    int batch = *(int *)dm->attributes[CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT];
    return note(stream, ta, tb, dm->rows, dm->columns, ta ? am->rows : am->columns,
                (struct matrix){a, am->type, am->leading}, (struct matrix){b, bm->type, bm->leading},
                (struct matrix){d, dm->type, dm->leading}, batch ? batch : 1);
}
