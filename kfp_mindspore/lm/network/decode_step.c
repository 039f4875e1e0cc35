/* A decode step of at most 16 sequences as a MindSpore custom operator: all layers, the last norm and the head. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* Floats in a vector register, and rows of weights that 4 sequences are multiplied with while they are in registers. */
#if defined(__AVX512F__)
enum { LANES = 16, TILE = 4 };
#elif defined(__AVX2__)
enum { LANES = 8, TILE = 2 };
#else
enum { LANES = 4, TILE = 2 };
#endif
enum { BLOCK = 4 };
#define INLINE static inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

/* In the order of decode_step.py's list; `norm1` and the others are positions among a layer's weights. */
typedef struct {
  int32_t threads, layers, heads, kv_heads, head_size, hidden, width, outputs, layer_norm, activation, gated, rotary,
      norm_after, qk_norm, joint_qk_norm, predicts, qkv_bias, out_bias, mlp_bias, window, loras, lora_rank, size, norm1, qkv, q_norm,
      k_norm, out, out_norm, norm2, up, down, down_norm;
} Plan;

typedef struct {
  const char *values;
  const float *scales, *bias; /* Scales by row of int8 values; NULL for float32 values. */
} Matrix;

INLINE Floats load(const char *row, int64_t k, int is_int8) {
  if (!is_int8) return *(const Floats *)(row + 4 * k);
  /* GCC 12 converts `Bytes` one by one. */
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(row + k))));
#elif defined(__AVX2__)
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(row + k))));
#else
  return __builtin_convertvector(__builtin_convertvector(*(const Bytes *)(row + k), Ints), Floats);
#endif
}

INLINE float add_lanes(Floats value) {
  float total = 0;
  for (int lane = 0; lane < LANES; lane++) total += value[lane];
  return total;
}

INLINE void multiply_tile(float *out, int64_t stride, const float *x, int64_t width, const Matrix *matrix, int is_int8,
                          int first, const int rows, const int count) {
  Floats sums[4][4];
  const int64_t bytes = width * (is_int8 ? 1 : 4);
  const char *values = matrix->values + first * bytes;
  int64_t k = 0;
#pragma GCC unroll 4
  for (int n = 0; n < count; n++)
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++) sums[n][m] = (Floats){0};
  for (; k + LANES <= width; k += LANES) {
    Floats weights[4];
#pragma GCC unroll 4
    for (int n = 0; n < count; n++) weights[n] = load(values + n * bytes, k, is_int8);
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++) {
      const Floats value = *(const Floats *)(x + m * width + k);
#pragma GCC unroll 4
      for (int n = 0; n < count; n++) sums[n][m] += weights[n] * value;
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < count; n++) {
    const char *row = values + n * bytes;
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++) {
      float total = add_lanes(sums[n][m]);
      for (int64_t rest = k; rest < width; rest++)
        total += x[m * width + rest] * (is_int8 ? (float)row[rest] : ((const float *)row)[rest]);
      if (is_int8) total *= matrix->scales[first + n];
      out[m * stride + first + n] = total + (matrix->bias ? matrix->bias[first + n] : 0);
    }
  }
}

INLINE void multiply_rows(float *out, int64_t stride, const float *x, int64_t width, const Matrix *matrix, int is_int8,
                          int start, int stop, const int rows, const int tile) {
  for (; start + tile <= stop; start += tile)
    multiply_tile(out, stride, x, width, matrix, is_int8, start, rows, tile);
  for (; start < stop; start++) multiply_tile(out, stride, x, width, matrix, is_int8, start, rows, 1);
}

INLINE void multiply_kind(float *out, int64_t stride, const float *x, int batch, int64_t width, const Matrix *matrix,
                          int is_int8, int start, int stop) {
  for (; start < stop; start += BLOCK) {
    const int end = start + BLOCK < stop ? start + BLOCK : stop;
    int m = 0;
    for (; batch - m >= 4; m += 4)
      multiply_rows(out + m * stride, stride, x + m * width, width, matrix, is_int8, start, end, 4, TILE);
    for (; batch - m >= 2; m += 2)
      multiply_rows(out + m * stride, stride, x + m * width, width, matrix, is_int8, start, end, 2, BLOCK);
    if (m < batch) multiply_rows(out + m * stride, stride, x + m * width, width, matrix, is_int8, start, end, 1, BLOCK);
  }
}

/* out[:, start:stop] = x @ matrix[start:stop].T + bias[start:stop]; x is (batch, width). */
static void multiply(float *out, int64_t stride, const float *x, int batch, int64_t width, Matrix matrix, int start,
                     int stop) {
  if (matrix.scales)
    multiply_kind(out, stride, x, batch, width, &matrix, 1, start, stop);
  else
    multiply_kind(out, stride, x, batch, width, &matrix, 0, start, stop);
}

static float dot(const float *x, const float *y, int count) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int i = 0; i < count; i++) total += x[i] * y[i];
  return total;
}

/* As decoder.apply_norm; a layer norm has a bias, and subtracts the mean. */
static void normalise(float *out, const float *x, int count, const float *weight, const float *bias, float epsilon) {
  float mean = 0, total = 0;
  if (bias) {
#pragma omp simd reduction(+ : mean)
    for (int i = 0; i < count; i++) mean += x[i];
    mean /= count;
  }
#pragma omp simd reduction(+ : total)
  for (int i = 0; i < count; i++) total += (x[i] - mean) * (x[i] - mean);
  const float scale = 1 / sqrtf(total / count + epsilon);
#pragma omp simd
  for (int i = 0; i < count; i++) out[i] = (x[i] - mean) * scale * weight[i];
  if (bias)
    for (int i = 0; i < count; i++) out[i] += bias[i];
}

static void rotate(float *x, int half, const float *cosine, const float *sine) {
#pragma omp simd
  for (int i = 0; i < half; i++) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cosine[i] - second * sine[i];
    x[half + i] = second * cosine[i] + first * sine[i];
  }
}

/* silu, gelu and gelu_tanh by number; see decoder.py for the last one. */
static void activate(float *x, int count, int kind) {
  if (kind == 0) {
#pragma omp simd
    for (int i = 0; i < count; i++) x[i] /= 1 + expf(-x[i]);
  } else if (kind == 1) {
    for (int i = 0; i < count; i++) x[i] *= 0.5f * (1 + erff(x[i] * 0.70710678f));
  } else {
#pragma omp simd
    for (int i = 0; i < count; i++) x[i] /= 1 + expf(-1.5957691f * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
  }
}

/* One head's attention over a sequence's `count` cached tokens and its new one; `scores` has count + 1 places. */
static void attend(float *out, const float *query, const float *keys, const float *values, const float *key,
                   const float *value, int count, int size, float *scores) {
  float most = scores[count] = dot(query, key, size), total = 0;
  for (int i = 0; i < count; i++) {
    scores[i] = dot(query, keys + (int64_t)i * size, size);
    most = scores[i] > most ? scores[i] : most;
  }
#pragma omp simd reduction(+ : total)
  for (int i = 0; i <= count; i++) total += scores[i] = expf(scores[i] - most);
  const float own = scores[count] / total;
  for (int d = 0; d < size; d++) out[d] = own * value[d];
  for (int i = 0; i < count; i++) {
    const float share = scores[i] / total, *row = values + (int64_t)i * size;
#pragma omp simd
    for (int d = 0; d < size; d++) out[d] += share * row[d];
  }
}

/* Adds a sequence's adapter to its columns from `start` to before `stop`; see AdapterFactors for `down` and `up`.
 * `ends` are the last columns of the `parts` that the matrix stacks; `inner` has lora_rank places. */
static void adapt(float *out, const float *x, int width, const float *down, const float *up, const Plan *plan, int adapter,
                  const int *ends, int parts, int start, int stop, float *inner) {
  const int rank = plan->lora_rank;
  const int64_t columns = (int64_t)parts * plan->loras * rank;
  for (int part = 0, column = start; part < parts; part++) {
    const int64_t place = ((int64_t)part * plan->loras + adapter - 1) * rank;
    const int end = stop < ends[part] ? stop : ends[part];
    if (column < end)
      for (int r = 0; r < rank; r++) inner[r] = dot(down + (place + r) * width, x, width);
    for (; column < end; column++) out[column] += dot(up + column * columns + place, inner, rank);
  }
}

/* Inputs: plan, (epsilon, scale, 0 for each unrotated layer, 0 for each windowed one), hidden (B, width), positions and
 * adapters (2, B), cosines and sines (1 or 2, B, head_size / 2), the last ones for windowed layers, caches
 * (2 * layers, slots, kv_heads, L, head_size), the layers' weights in list_weights' order, the last norm's and the head,
 * then int8 matrices' scales in their order, then AdapterFactors' arrays. Outputs: logits (B, V), or hidden states, and
 * new rows (2 * layers, B, kv_heads, head_size). */
int decode_step(int nparam, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *stream,
                void *extra) {
  const Plan *plan = params[0];
  const float epsilon = ((float *)params[1])[0], scale = ((float *)params[1])[1], *rotated = (float *)params[1] + 2;
  const float *whole = rotated + plan->layers;
  const float *cosines = params[4], *sines = params[5], *cache = params[6];
  const int batch = shapes[2][0], width = plan->width, size = plan->head_size, heads = plan->heads;
  const int32_t *positions = params[3], *adapters = positions + batch;
  const int kv_heads = plan->kv_heads, query = heads * size, fused = query + 2 * kv_heads * size, half = size / 2;
  const int inner = plan->hidden, up = inner * (plan->gated ? 2 : 1), first = 7;
  const int64_t local = (shapes[4][0] - 1) * batch * half;
  const int64_t slots = shapes[6][1], length = shapes[6][3], head_step = length * size;
  const int weights = plan->layers * plan->size + (plan->predicts ? 2 + plan->layer_norm : 0);
  const int qkv_ends[] = {query, query + kv_heads * size, fused}, factors = nparam - 2 - 4 * plan->layers;
  float *logits = params[nparam - 2], *rows = params[nparam - 1];
  int is_int8 = 0;
  for (int i = first; i < first + weights; i++) is_int8 |= !strcmp(dtypes[i], "int8");

  /* By thread: hidden states, normed states, a query, a key, scores and an adapter's inner values; then what the threads share. */
  const int64_t own = (int64_t)batch * width * 2 + 2 * (query + size) + length + 1 + plan->lora_rank;
  const int64_t shared = (int64_t)batch * (fused + query + width + up);
  float *memory = malloc(sizeof(float) * (plan->threads * own + shared));
  if (!memory) return 1;
  float *projected = memory + plan->threads * own, *mixed = projected + (int64_t)batch * fused;
  float *update = mixed + (int64_t)batch * query, *inside = update + (int64_t)batch * width;

#define WEIGHT(index) ((const float *)params[first + (index)])
#define MATRIX(index, has_bias, order)                                          \
  ((Matrix){params[first + (index)], is_int8 ? WEIGHT(weights + (order)) : NULL, \
            (has_bias) ? WEIGHT((index) + 1) : NULL})
#define NORM(out, x, index)                                                                            \
  for (int b = 0; b < batch; b++)                                                                      \
    normalise((out) + (int64_t)b * width, (x) + (int64_t)b * width, width, WEIGHT(index),              \
              plan->layer_norm ? WEIGHT((index) + 1) : NULL, epsilon)
#pragma omp parallel num_threads(plan->threads)
  {
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
    float *hidden = memory + thread * own, *normed = hidden + (int64_t)batch * width;
    float *queries = normed + (int64_t)batch * width, *key = queries + query, *scores = key + size;
    float *turned = scores + length + 1, *inner_values = turned + size;
#define PART(count, index) ((int)((int64_t)(count) * (index) / threads))
#define MULTIPLY(out, stride, x, columns, matrix, count, offset)                                                   \
  multiply(out, stride, x, batch, columns, matrix, (offset) + PART(count, thread), (offset) + PART(count, thread + 1))
#define ADAPT(out, stride, x, columns, index, ends, parts, count)                                                    \
  for (int b = 0; b < batch; b++)                                                                                  \
    if (adapters[b])                                                                                               \
      adapt((out) + (int64_t)b * (stride), (x) + (int64_t)b * (columns), columns, params[factors + (index)],       \
            params[factors + (index) + 1], plan, adapters[b], ends, parts, PART(count, thread), PART(count, thread + 1), \
            inner_values)
    /* Each thread adds up all hidden states itself, which needs no barrier. */
    memcpy(hidden, params[2], sizeof(float) * batch * width);
    for (int layer = 0; layer < plan->layers; layer++) {
      const int base = layer * plan->size;
      const float *source = hidden;
      if (!plan->norm_after) {
        NORM(normed, hidden, base + plan->norm1);
        source = normed;
      }
      MULTIPLY(projected, fused, source, width, MATRIX(base + plan->qkv, plan->qkv_bias, 4 * layer), fused, 0);
      ADAPT(projected, fused, source, width, 4 * layer, qkv_ends, 3, fused);
#pragma omp barrier
      for (int item = PART(batch * heads, thread); item < PART(batch * heads, thread + 1); item++) {
        const int b = item / heads, head = item % heads, kv = head / (heads / kv_heads);
        const float *row = projected + (int64_t)b * fused, *value = row + query + (kv_heads + kv) * size;
        const float *key_weight = NULL, *query_weight = NULL;
        memcpy(turned, row + head * size, sizeof(float) * size);
        memcpy(key, row + query + kv * size, sizeof(float) * size);
        if (plan->qk_norm) {
          normalise(turned, turned, size, WEIGHT(base + plan->q_norm), NULL, epsilon);
          normalise(key, key, size, WEIGHT(base + plan->k_norm), NULL, epsilon);
        }
        if (plan->joint_qk_norm) {
          query_weight = WEIGHT(base + plan->q_norm) + head * size;
          key_weight = WEIGHT(base + plan->k_norm) + kv * size;
          const float q = 1 / sqrtf(dot(row, row, query) / query + epsilon);
          const float k = 1 / sqrtf(dot(row + query, row + query, kv_heads * size) / (kv_heads * size) + epsilon);
          for (int d = 0; d < size; d++) turned[d] *= q * query_weight[d], key[d] *= k * key_weight[d];
        }
        if (plan->rotary && rotated[layer]) {
          const int64_t place = b * half + (whole[layer] ? 0 : local);
          rotate(turned, half, cosines + place, sines + place);
          rotate(key, half, cosines + place, sines + place);
        }
        if (head % (heads / kv_heads) == 0) {
          memcpy(rows + (((int64_t)2 * layer * batch + b) * kv_heads + kv) * size, key, sizeof(float) * size);
          memcpy(rows + (((int64_t)(2 * layer + 1) * batch + b) * kv_heads + kv) * size, value, sizeof(float) * size);
        }
        for (int d = 0; d < size; d++) turned[d] *= scale;
        const int begin = whole[layer] || positions[b] < plan->window ? 0 : positions[b] - plan->window + 1;
        const float *keys = cache + ((2 * layer * slots + b) * kv_heads + kv) * head_step + (int64_t)begin * size;
        const float *values = keys + slots * kv_heads * head_step;
        attend(mixed + (int64_t)b * query + head * size, turned, keys, values, key, value, positions[b] - begin, size,
               scores);
      }
#pragma omp barrier
      MULTIPLY(update, width, mixed, query, MATRIX(base + plan->out, plan->out_bias, 4 * layer + 1), width, 0);
      ADAPT(update, width, mixed, query, 4 * layer + 2, &width, 1, width);
#pragma omp barrier
      source = update;
      if (plan->out_norm >= 0) {
        NORM(normed, update, base + plan->out_norm);
        source = normed;
      }
      for (int i = 0; i < batch * width; i++) hidden[i] += source[i];
      source = hidden;
      if (!plan->norm_after) {
        NORM(normed, hidden, base + plan->norm2);
        source = normed;
      }
      const Matrix widen = MATRIX(base + plan->up, plan->mlp_bias, 4 * layer + 2);
      MULTIPLY(inside, inner, source, width, widen, inner, 0);
      float *factor = inside + (int64_t)batch * inner;
      if (plan->gated) MULTIPLY(factor - inner, inner, source, width, widen, inner, inner);
      const int start = PART(inner, thread), count = PART(inner, thread + 1) - start;
      for (int b = 0; b < batch; b++) {
        float *gate = inside + (int64_t)b * inner + start;
        activate(gate, count, plan->activation);
        if (plan->gated)
          for (int i = 0; i < count; i++) gate[i] *= factor[(int64_t)b * inner + start + i];
      }
#pragma omp barrier
      MULTIPLY(update, width, inside, inner, MATRIX(base + plan->down, plan->mlp_bias, 4 * layer + 3), width, 0);
#pragma omp barrier
      source = update;
      if (plan->down_norm >= 0) {
        NORM(normed, update, base + plan->down_norm);
        source = normed;
      }
      for (int i = 0; i < batch * width; i++) hidden[i] += source[i];
    }
    if (plan->predicts) {
      const int norm = plan->layers * plan->size;
      NORM(normed, hidden, norm);
      const Matrix head = MATRIX(norm + 1 + plan->layer_norm, 0, 4 * plan->layers);
      MULTIPLY(logits, plan->outputs, normed, width, head, plan->outputs, 0);
    } else if (thread == 0) {
      memcpy(logits, hidden, sizeof(float) * batch * width);
    }
  }
  free(memory);
  return 0;
}
