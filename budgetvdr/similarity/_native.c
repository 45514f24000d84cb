/* MaxSim over ragged pages and int8 quantisation for x86-64: maxsim.py calls this where it was built.

   Scores pages of int8 rows (a scale a row) or float16 rows (divided by their length on the way). Two tiers of the same
   code, _native_tier.h, chosen by the caller among those that this CPU runs: AVX-512 with VNNI, and AVX2. Elsewhere
   the module is empty and maxsim.py falls back. Limited API, so that one build serves every Python from 3.11 on.
   Callers may pass anything: lengths and row numbers are checked before memory is read. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Operands a row that the scratch holds: 128 of 32 rows are 16 KiB, half of a first cache; the query takes the rest. */
#define STEPS 128
/* fill8 writes whole registers and may pass the end of its part. */
#define SLACK 16
/* Stands for lengths and peaks of zero rows; the smallest of other float16 rows is 6e-8. */
#define TINY 1e-30f

/* Consecutive columns of all rows. start, steps: its operands in the scratch; 0 begins to fill the scratch anew. */
typedef struct {
    const char *data;
    Py_ssize_t stride;
    int columns, start, steps;
} part;

typedef struct {
    part *parts;
    int n_parts;
    int vectors;           /* of the query */
    Py_ssize_t width;      /* components of a row */
    const int32_t *query;  /* (operands, vectors): float32, or bytes as the tier wants them */
    const int32_t *starts; /* (vectors,): what sums begin with */
    const float *weights;  /* (vectors,), then zeros up to a full register */
    const float *scales;   /* (rows,), int8 only */
} job;

/* Memory of one call: (STEPS + SLACK, 2 blocks), (vectors, 2 blocks) and (vectors, then zeros) registers. */
typedef struct {
    void *scratch, *sums, *best;
} work;

/* Where the sums over the columns stand, and what to fetch meanwhile: the rows of the next tile, line by line, because
   reading 32 rows at once is a pattern that processors do not foresee. A part of 8 columns adds 32 lines at most. */
typedef struct {
    const int32_t *query;
    int steps, first, last, n_lines, per_step;
    const char *lines[STEPS / 8 * 32];
} pass;

typedef struct {
    int words, lanes;
    float (*page[2])(const job *, const work *, Py_ssize_t, Py_ssize_t);
    void (*quantise)(const job *, Py_ssize_t, Py_ssize_t, int8_t *, float *);
} tier;

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
/* Loops over sums have to vanish, or the sums are not held in registers. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define NAME(f) f##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")))
#define LANES 16
#define GROUP 12
#define WORDS 1
#define VI __m512i
#define VF __m512
#define OP(f) _mm512_##f
/* Rows i and i + 4, or 4 further for the last four registers: transpose8 leaves them in order. */
#define PAIR(rows, i, at) (rows)[(i) < 4 ? (i) : (i) + 4] + (at), (rows)[(i) < 4 ? (i) + 4 : (i) + 8] + (at)
#define BYTES_AT(row) _mm256_loadu_si256((const void *)(row))
#define HALVES_AT(row) _mm_loadu_si128((const void *)(row))
#define BYTES_OF(a, b) _mm512_inserti64x4(_mm512_castsi256_si512(BYTES_AT(a)), BYTES_AT(b), 1)
#define HALVES_OF(a, b) \
    _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(HALVES_AT(a)), HALVES_AT(b), 1))
#define APPLY(f, pair) f(pair)
#define LOAD_BYTES(rows, i, at) APPLY(BYTES_OF, PAIR(rows, i, at))
#define LOAD_HALVES(rows, i, at) APPLY(HALVES_OF, PAIR(rows, i, at))
#define CONVERT_HALVES(at) _mm512_cvtph_ps(BYTES_AT(at))
#define JOIN_EVEN(a, b) _mm512_shuffle_i32x4(a, b, 0x88)
#define JOIN_ODD(a, b) _mm512_shuffle_i32x4(a, b, 0xdd)
#define SPLIT_BYTES(out, v) ((out)[0] = (v))
#define ADD_BYTES(sums, row, word) _mm512_dpbusd_epi32(sums, row, word)
#define ABSOLUTE(v) _mm512_abs_ps(v)
#define STORE_CODES(out, v) _mm_storeu_si128((void *)(out), _mm512_cvtepi32_epi8(v))
#include "_native_tier.h"

#define NAME(f) f##_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define LANES 8
#define GROUP 6
#define WORDS 2
#define VI __m256i
#define VF __m256
#define OP(f) _mm256_##f
#define LOAD_BYTES(rows, i, at) BYTES_AT((rows)[i] + (at))
#define LOAD_HALVES(rows, i, at) CONVERT_HALVES((rows)[i] + (at))
#define CONVERT_HALVES(at) _mm256_cvtph_ps(HALVES_AT(at))
#define JOIN_EVEN(a, b) _mm256_permute2x128_si256(a, b, 0x20)
#define JOIN_ODD(a, b) _mm256_permute2x128_si256(a, b, 0x31)
#define SPLIT_BYTES(out, v) \
    ((out)[0] = _mm256_and_si256(v, _mm256_set1_epi16(0xff)), (out)[2] = _mm256_srli_epi16(v, 8))
#define ADD_BYTES(sums, row, word) _mm256_add_epi32(sums, _mm256_madd_epi16(row, word))
#define ABSOLUTE(v) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v)
#define STORE_CODES(out, v) NAME(store_codes)(out, v)
static inline TARGET void store_codes_avx2(int8_t *out, __m256i v)
{
    __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((void *)out, _mm_packs_epi16(shorts, shorts));
}
#include "_native_tier.h"

static const char *const NAMES[] = {"avx512", "avx2"};

static const tier *tier_of(int i)
{
    __builtin_cpu_init();
    /* All processors with AVX2 convert float16 (F16C), which older compilers cannot ask about. */
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const int avx512 = avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    return i == 0 && avx512 ? &tier_avx512 : i == 1 && avx2 ? &tier_avx2 : NULL;
}
#define TIERS 2
#else
static const char *const NAMES[] = {""};
static const tier *tier_of(int i) { (void)i; return NULL; }
#define TIERS 0
#endif

/* Sums of products of bytes stay within 32 bits up to here. */
#define MOST_COLUMNS 65536
#define MOST_VECTORS 65536

/* What one call has borrowed from Python and from the heap. */
typedef struct {
    Py_buffer *buffers;
    int n_buffers;
    part *parts;
    char *memory;
} call;

static void end(call *c)
{
    while (c->n_buffers > 0)
        PyBuffer_Release(&c->buffers[--c->n_buffers]);
    free(c->buffers);
    free(c->parts);
    free(c->memory);
}

static int fail(const char *expected)
{
    PyErr_Format(PyExc_ValueError, "the compiled kernel expected %s", expected);
    return 0;
}

/* Exporters such as ctypes leave the strides of dense arrays out. */
static Py_ssize_t stride(const Py_buffer *b, int axis)
{
    if (b->strides != NULL)
        return b->strides[axis];
    return axis + 1 == b->ndim ? b->itemsize : b->shape[axis + 1] * b->itemsize;
}

/* An array of the given dimensions and item size: dense, or with STRIDED rows; NULL and an exception otherwise. */
enum { DENSE = PyBUF_C_CONTIGUOUS, STRIDED = PyBUF_STRIDES, WRITABLE = PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE };
static Py_buffer *borrow(call *c, PyObject *object, int dimensions, Py_ssize_t item, int how, const char *expected)
{
    Py_buffer *b = &c->buffers[c->n_buffers];
    if (PyObject_GetBuffer(object, b, how) < 0)
        return NULL;
    c->n_buffers++;
    const int last = dimensions - 1;
    if (b->ndim != dimensions || b->shape == NULL || b->itemsize != item ||
        (b->shape[last] > 1 && stride(b, last) != item) ||
        (how == WRITABLE && (uintptr_t)b->buf % (size_t)item != 0)) {
        fail(expected);
        return NULL;
    }
    return b;
}

/* Cuts slices, side by side, into parts that fit the scratch. Rows are as many as the first slice has. */
static int cut(call *c, job *k, PyObject *slices, Py_ssize_t n, int bytes, int words, Py_ssize_t *rows)
{
    static const char *const expected = "slices (N, w) of float16 or int8, equally long, w >= 1, at most 65536 columns";
    const int room = STEPS / (bytes ? words : 1) * (bytes ? 4 : 1); /* columns of a full scratch */
    int used = 0;
    c->parts = calloc((size_t)(2 * n + MOST_COLUMNS / room + 1), sizeof *c->parts);
    if (c->parts == NULL)
        return PyErr_NoMemory(), 0;
    k->parts = c->parts;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *slice = bytes ? slices : PyTuple_GetItem(slices, i);
        Py_buffer *b = slice == NULL ? NULL : borrow(c, slice, 2, bytes ? 1 : 2, STRIDED, expected);
        if (b == NULL)
            return 0;
        if (b->shape[1] < 1 || b->shape[1] > MOST_COLUMNS - k->width || (i > 0 && b->shape[0] != *rows))
            return fail(expected);
        *rows = b->shape[0];
        k->width += b->shape[1];
        for (int done = 0, columns; done < b->shape[1]; done += columns) {
            columns = (int)b->shape[1] - done < room - used ? (int)b->shape[1] - done : room - used;
            const int operands = bytes ? (columns + 3) / 4 * words : columns;
            k->parts[k->n_parts++] = (part){.data = (const char *)b->buf + done * b->itemsize, .stride = stride(b, 0),
                                            .columns = columns, .start = bytes ? 0 : used, .steps = operands};
            used = bytes || used + columns == room ? 0 : used + columns;
        }
    }
    return n > 0 ? 1 : fail(expected);
}

/* The four components 4 * i and on of int8 query vector j, as the tier's operand number `word`. */
static int32_t quad(const int8_t *codes, Py_ssize_t width, Py_ssize_t i, int words, int word)
{
    int8_t c[4] = {0};
    memcpy(c, codes + 4 * i, (size_t)(width - 4 * i < 4 ? width - 4 * i : 4));
    const int16_t pair[2] = {c[word], c[word + 2 < 4 ? word + 2 : word]};
    int32_t operand;
    memcpy(&operand, words == 1 ? (const void *)c : (const void *)pair, sizeof operand);
    return operand;
}

/* Lays the query out as (operands, vectors) and takes the memory of the call. */
static int prepare(call *c, job *k, work *w, const tier *t, const Py_buffer *query, const float *weights)
{
    const int bytes = query->itemsize == 1, n = k->vectors;
    const Py_ssize_t operands = bytes ? (k->width + 3) / 4 * t->words : k->width;
    const size_t lane = 4 * (size_t)t->lanes, padded = (size_t)n + (size_t)t->lanes;
    c->memory = calloc(1, 64 + ((STEPS + SLACK) * 2 + 2 * (size_t)n + padded) * lane +
                              4 * ((size_t)operands * (size_t)n + (size_t)n + padded));
    if (c->memory == NULL)
        return PyErr_NoMemory(), 0;
    char *at = (char *)(((uintptr_t)c->memory + 63) / 64 * 64);
    w->scratch = at;
    w->sums = at += (STEPS + SLACK) * 2 * lane;
    w->best = at += 2 * (size_t)n * lane;
    int32_t *words = (int32_t *)(at += padded * lane), *starts = words + operands * n;
    for (int j = 0; j < n; j++)
        for (Py_ssize_t s = 0; s < operands; s++)
            if (bytes) {
                const int8_t *codes = (const int8_t *)query->buf + j * k->width;
                words[s * n + j] = quad(codes, k->width, s / t->words, t->words, (int)(s % t->words));
            } else
                memcpy(&words[s * n + j], (const char *)query->buf + 4 * (j * k->width + s), 4);
    for (int j = 0; bytes && j < n; j++) /* rows enter the products as row + 128 */
        for (Py_ssize_t i = 0; i < k->width; i++)
            starts[j] -= 128 * ((const int8_t *)query->buf)[j * k->width + i];
    float *kept = (float *)(starts + n);
    for (int j = 0; j < n; j++)
        kept[j] = weights == NULL ? 1.0f / (float)n : weights[j];
    k->query = words, k->starts = starts, k->weights = kept;
    return 1;
}

/* The pages to score: those of places, or all where there are none. */
typedef struct {
    const int64_t *offsets, *places;
    Py_ssize_t pages, rows, wanted;
    float *scores;
} span;

static int score(const job *k, const work *w, const tier *t, int bytes, const span *s)
{
    for (Py_ssize_t i = 0; i < s->wanted; i++) {
        const int64_t page = s->places == NULL ? i : s->places[i];
        if (page < 0 || page >= s->pages)
            return 0;
        const int64_t first = s->offsets[page], last = s->offsets[page + 1];
        if (first < 0 || first > last || last > s->rows)
            return 0;
        s->scores[i] = first == last ? -INFINITY : t->page[bytes](k, w, first, last);
    }
    return 1;
}

static const tier *find(const char *name)
{
    for (int i = 0; i < TIERS; i++)
        if (strcmp(NAMES[i], name) == 0 && tier_of(i) != NULL)
            return tier_of(i);
    fail("a tier that this machine runs");
    return NULL;
}

/* weights, scales: NULL for float16 rows. */
static int run(call *c, const char *name, PyObject *slices, PyObject *query, PyObject *weights, PyObject *scales,
               PyObject *offsets, PyObject *places, PyObject *scores)
{
    const int bytes = scales != NULL;
    const Py_ssize_t n = bytes ? 1 : PyTuple_Size(slices);
    const tier *t = find(name);
    job k = {0};
    work w;
    span s = {0};
    Py_buffer *q, *given = NULL, *b;
    if (t == NULL || n < 0)
        return 0;
    c->buffers = calloc((size_t)n + 8, sizeof *c->buffers);
    if (c->buffers == NULL)
        return PyErr_NoMemory(), 0;
    if (!cut(c, &k, slices, n, bytes, t->words, &s.rows))
        return 0;
    if ((q = borrow(c, query, 2, bytes ? 1 : 4, DENSE, "a dense query (n, d)")) == NULL)
        return 0;
    if (q->shape[0] < 1 || q->shape[0] > MOST_VECTORS || q->shape[1] != k.width)
        return fail("1 to 65536 query vectors as wide as the rows");
    k.vectors = (int)q->shape[0];
    if (bytes) {
        if ((b = borrow(c, scales, 1, 4, DENSE, "float32 scales")) == NULL ||
            (given = borrow(c, weights, 1, 4, DENSE, "float32 weights")) == NULL)
            return 0;
        if (b->shape[0] != s.rows || given->shape[0] != k.vectors)
            return fail("a scale a row and a weight a query vector");
        k.scales = b->buf;
    }
    if ((b = borrow(c, offsets, 1, 8, DENSE, "int64 offsets")) == NULL)
        return 0;
    s.offsets = b->buf, s.wanted = s.pages = b->shape[0] - 1;
    if (places != Py_None) {
        if ((b = borrow(c, places, 1, 8, DENSE, "int64 places")) == NULL)
            return 0;
        s.places = b->buf, s.wanted = b->shape[0];
    }
    if ((b = borrow(c, scores, 1, 4, WRITABLE, "writable float32 scores")) == NULL)
        return 0;
    s.scores = b->buf;
    if (b->shape[0] != s.wanted)
        return fail("a score for each page or place");
    if (!prepare(c, &k, &w, t, q, given == NULL ? NULL : given->buf))
        return 0;
    int sound;
    Py_BEGIN_ALLOW_THREADS
    sound = score(&k, &w, t, bytes, &s);
    Py_END_ALLOW_THREADS
    return sound ? 1 : fail("places within the pages, and ascending offsets within the rows");
}

static PyObject *py_maxsim(PyObject *module, PyObject *args)
{
    const char *name;
    PyObject *slices, *offsets, *query, *scores;
    call c = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "sOOOO", &name, &slices, &offsets, &query, &scores))
        return NULL;
    const int done = run(&c, name, slices, query, NULL, NULL, offsets, Py_None, scores);
    end(&c);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_scan_int8(PyObject *module, PyObject *args)
{
    const char *name;
    PyObject *values, *scales, *offsets, *query, *weights, *places, *scores;
    call c = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "s(OOO)(OO)OO", &name, &values, &scales, &offsets, &query, &weights, &places, &scores))
        return NULL;
    const int done = run(&c, name, values, query, weights, scales, offsets, places, scores);
    end(&c);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

static int quantise(call *c, const char *name, PyObject *slices, PyObject *values, PyObject *scales)
{
    const Py_ssize_t n = PyTuple_Size(slices);
    const tier *t = find(name);
    job k = {0};
    Py_ssize_t rows = 0;
    Py_buffer *codes, *kept;
    if (t == NULL || n < 0)
        return 0;
    c->buffers = calloc((size_t)n + 2, sizeof *c->buffers);
    if (c->buffers == NULL)
        return PyErr_NoMemory(), 0;
    if (!cut(c, &k, slices, n, 0, t->words, &rows) ||
        (codes = borrow(c, values, 2, 1, WRITABLE, "writable int8 values")) == NULL ||
        (kept = borrow(c, scales, 1, 4, WRITABLE, "writable float32 scales")) == NULL)
        return 0;
    if (codes->shape[0] != rows || codes->shape[1] != k.width || kept->shape[0] != rows)
        return fail("values and scales as long and wide as the slices");
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t first = 0; first < rows; first += t->lanes)
        t->quantise(&k, first, rows, codes->buf, kept->buf);
    Py_END_ALLOW_THREADS
    return 1;
}

static PyObject *py_quantise(PyObject *module, PyObject *args)
{
    const char *name;
    PyObject *slices, *values, *scales;
    call c = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "sOOO", &name, &slices, &values, &scales))
        return NULL;
    const int done = quantise(&c, name, slices, values, scales);
    end(&c);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_tiers(PyObject *module, PyObject *none)
{
    PyObject *names = PyList_New(0);
    (void)module, (void)none;
    for (int i = 0; names != NULL && i < TIERS; i++) {
        PyObject *name = tier_of(i) == NULL ? NULL : PyUnicode_FromString(NAMES[i]);
        if (name != NULL && PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyMethodDef methods[] = {
    {"tiers", py_tiers, METH_NOARGS, NULL},
    {"maxsim", py_maxsim, METH_VARARGS, NULL},
    {"scan_int8", py_scan_int8, METH_VARARGS, NULL},
    {"quantise", py_quantise, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
