/* The kernels for one instruction set; _native.c includes this file once a tier, after defining

     NAME(f), TARGET              names of this tier, and code generation
     LANES                        32-bit lanes of a register: rows of a block
     GROUP                        query vectors whose sums stay in registers, for two blocks of rows; 12 at most
     WORDS                        operands of ADD_BYTES that hold four int8 components
     VI, VF, OP(f)                registers, intrinsics
     LOAD_BYTES, LOAD_HALVES      32 int8 or 8 float16 of one row, or of two rows where a register has room for two
     CONVERT_HALVES               LANES float16 as float32
     JOIN_EVEN, JOIN_ODD          128-bit parts 0, 2 or 1, 3 of two registers
     SPLIT_BYTES, ADD_BYTES       four unsigned bytes a lane -> operands; sums += products with bytes of the query
     ABSOLUTE, STORE_CODES        float32 without signs; integers -> int8

   Rows are lanes: a block of LANES rows is transposed into a scratch that stays in the first cache, and each register
   of it, one component of LANES rows, meets that component of every query vector as a broadcast. So no lane idles,
   whatever the number of query vectors, and maxima are taken across lanes once a page. The last block of a page repeats
   the page's last row, which moves no maximum: no masks, and no reads past the end. */

#define INLINE static inline __attribute__((always_inline)) TARGET

/* 8 columns of 32-bit words of a block: from registers as loaded to one register a column. */
INLINE void NAME(transpose8)(VI v[8])
{
    VI t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = OP(unpacklo_epi32)(v[i], v[i + 1]);
        t[i + 1] = OP(unpackhi_epi32)(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int half = 0; half < 2; half++) {
            u[i + 2 * half] = OP(unpacklo_epi64)(t[i + half], t[i + 2 + half]);
            u[i + 2 * half + 1] = OP(unpackhi_epi64)(t[i + half], t[i + 2 + half]);
        }
    for (int i = 0; i < 4; i++) {
        v[i] = JOIN_EVEN(u[i], u[i + 4]);
        v[i + 4] = JOIN_ODD(u[i], u[i + 4]);
    }
}

/* Columns of a block, 8 of float16 or 32 of int8, into the scratch; adds the squares of float16 up. */
INLINE void NAME(fill8)(const int bytes, const char *const *rows, Py_ssize_t at, VI *out, VF squares[2])
{
    VI v[8];
    for (int i = 0; i < 8; i++)
        v[i] = bytes ? LOAD_BYTES(rows, i, at) : (VI)LOAD_HALVES(rows, i, at);
    NAME(transpose8)(v);
    for (int i = 0; i < 8; i++) {
        if (bytes) {
            /* ADD_BYTES takes unsigned rows: 128 more, which the sums' start makes good. */
            VI shifted = v[i] ^ OP(set1_epi8)((char)0x80);
            SPLIT_BYTES(out + 2 * WORDS * i, shifted);
        } else {
            out[2 * i] = v[i];
            squares[i % 2] = OP(fmadd_ps)((VF)v[i], (VF)v[i], squares[i % 2]);
        }
    }
}

/* One part of the columns of a block. */
INLINE void NAME(fill)(const int bytes, const part *p, const Py_ssize_t rows[LANES], VI *out, VF squares[2], pass *s)
{
    const Py_ssize_t step = bytes ? 32 : 16; /* bytes of a row that fill8 takes */
    const Py_ssize_t width = p->columns * (bytes ? 1 : 2);
    const Py_ssize_t ahead = 2 * LANES * p->stride;
    const char *from[LANES];
    Py_ssize_t at = 0;
    for (int i = 0; i < LANES; i++)
        from[i] = p->data + rows[i] * p->stride;
    for (; at + step <= width; at += step, out += 2 * 8 * (bytes ? WORDS : 1)) {
        if (at % 64 == 0 && p->stride > 64)
            for (int i = 0; i < LANES; i++)
                s->lines[s->n_lines++] = from[i] + at + ahead;
        NAME(fill8)(bytes, from, at, out, squares);
    }
    if (at == width)
        return;
    char tail[LANES][32] = {0}; /* zeros after the last column change no sum */
    for (int i = 0; i < LANES; i++)
        from[i] = memcpy(tail[i], from[i] + at, (size_t)(width - at));
    NAME(fill8)(bytes, from, 0, out, squares);
}

/* Sums for `size` query vectors from `j` on over the scratch; after the last part of the columns, their maxima. */
INLINE void NAME(group)(const int bytes, const int blocks, const int size, const job *k, const work *w, const pass *s,
                        int j, const VF factors[2])
{
    VI sums[GROUP][2];
    VI *const kept = (VI *)w->sums + 2 * j;
    VF *const best = (VF *)w->best + j;
    UNROLL
    for (int q = 0; q < size; q++)
        for (int b = 0; b < blocks; b++)
            sums[q][b] = s->first ? OP(set1_epi32)(k->starts[j + q]) : kept[2 * q + b];
    const VI *rows = (const VI *)w->scratch;
    const int32_t *query = s->query + j;
    const char *const *line = s->lines;
    const int per = j == 0 ? s->per_step : 0;
    for (int step = 0; step < s->steps; step++, rows += 2, query += k->vectors) {
        for (int i = 0; i < per; i++)
            __builtin_prefetch(*line++, 0, 3);
        UNROLL
        for (int q = 0; q < size; q++) {
            VI word = OP(set1_epi32)(query[q]);
            for (int b = 0; b < blocks; b++)
                sums[q][b] = bytes ? ADD_BYTES(sums[q][b], rows[b], word)
                                   : (VI)OP(fmadd_ps)((VF)rows[b], (VF)word, (VF)sums[q][b]);
        }
    }
    UNROLL
    for (int q = 0; q < size; q++)
        for (int b = 0; b < blocks; b++)
            if (s->last) {
                VF sum = bytes ? OP(cvtepi32_ps)(sums[q][b]) : (VF)sums[q][b];
                best[q] = OP(max_ps)(OP(mul_ps)(sum, factors[b]), best[q]);
            } else
                kept[2 * q + b] = sums[q][b];
}

INLINE VF NAME(gather)(const float *scales, const Py_ssize_t rows[LANES])
{
    float lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = scales[rows[i]];
    return OP(loadu_ps)(lanes);
}

/* 1 / length; finite for zero rows, whose sums are zero. */
INLINE VF NAME(inverse)(const VF squares[2])
{
    VF length = OP(sqrt_ps)(OP(add_ps)(squares[0], squares[1]));
    return OP(div_ps)(OP(set1_ps)(1), OP(max_ps)(length, OP(set1_ps)(TINY)));
}

/* Up to two blocks of rows of a page against all query vectors. */
INLINE void NAME(tile)(const int bytes, const int blocks, const job *k, const work *w, Py_ssize_t first,
                       Py_ssize_t last)
{
    Py_ssize_t rows[2 * LANES];
    VF factors[2], squares[2][2];
    VI *out = (VI *)w->scratch;
    pass s; /* its lines are filled as they are needed */
    s.query = k->query, s.first = 1, s.n_lines = 0;
    const int groups = (k->vectors + GROUP - 1) / GROUP;
    for (int i = 0; i < blocks * LANES; i++)
        rows[i] = first + i < last ? first + i : last - 1;
    for (int b = 0; b < blocks; b++)
        squares[b][0] = squares[b][1] = OP(setzero_ps)();
    for (const part *p = k->parts; p < k->parts + k->n_parts; p++) {
        for (int b = 0; b < blocks; b++)
            NAME(fill)(bytes, p, rows + b * LANES, out + 2 * p->start + b, squares[b], &s);
        s.steps = p->start + p->steps;
        s.last = p + 1 == k->parts + k->n_parts;
        if (!s.last && p[1].start > 0)
            continue; /* the next part still fits the scratch */
        if (s.last)
            for (int b = 0; b < blocks; b++)
                factors[b] = bytes ? NAME(gather)(k->scales, rows + b * LANES) : NAME(inverse)(squares[b]);
        s.per_step = (s.n_lines + s.steps - 1) / s.steps;
        for (int group = 0, j = 0; group < groups; group++) {
            const int size = k->vectors / groups + (group < k->vectors % groups);
            switch (size) {
#define CASE(n) \
    case n: \
        if (n <= GROUP) \
            NAME(group)(bytes, blocks, n <= GROUP ? n : 1, k, w, &s, j, factors); \
        break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
            }
            j += size;
        }
        s.query += (Py_ssize_t)s.steps * k->vectors;
        s.first = 0;
        s.n_lines = 0;
    }
}

/* Lane i of the result: the sum, or else the maximum, of the lanes of v[i]. */
INLINE VF NAME(fold)(const int sum, const VF *from)
{
#define MERGE(a, b) (sum ? OP(add_ps)((VF)(a), (VF)(b)) : OP(max_ps)((VF)(a), (VF)(b)))
    VF v[LANES];
    for (int i = 0; i < LANES; i++)
        v[i] = from[i];
    for (int i = 0; i < LANES / 2; i++)
        v[i] = MERGE(OP(unpacklo_ps)(v[2 * i], v[2 * i + 1]), OP(unpackhi_ps)(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < LANES / 4; i++)
        v[i] = MERGE(OP(unpacklo_epi64)((VI)v[2 * i], (VI)v[2 * i + 1]),
                     OP(unpackhi_epi64)((VI)v[2 * i], (VI)v[2 * i + 1]));
    for (int n = LANES / 8; n >= 1; n /= 2)
        for (int i = 0; i < n; i++)
            v[i] = MERGE(JOIN_EVEN((VI)v[2 * i], (VI)v[2 * i + 1]), JOIN_ODD((VI)v[2 * i], (VI)v[2 * i + 1]));
    return v[0];
#undef MERGE
}

INLINE float NAME(page)(const int bytes, const job *k, const work *w, Py_ssize_t first, Py_ssize_t last)
{
    VF *const best = (VF *)w->best, total = OP(setzero_ps)();
    for (int j = 0; j < k->vectors; j++)
        best[j] = OP(set1_ps)(-INFINITY);
    for (; first < last; first += 2 * LANES)
        if (last - first > LANES)
            NAME(tile)(bytes, 2, k, w, first, last);
        else
            NAME(tile)(bytes, 1, k, w, first, last);
    /* Beyond the last query vector both maxima and weights are zero. */
    for (int j = 0; j < k->vectors; j += LANES)
        total = OP(fmadd_ps)(NAME(fold)(0, best + j), OP(loadu_ps)(k->weights + j), total);
    float lanes[LANES], score = 0;
    OP(storeu_ps)(lanes, total);
    for (int i = 0; i < LANES; i++)
        score += lanes[i];
    return score;
}

static TARGET float NAME(page_of_bytes)(const job *k, const work *w, Py_ssize_t first, Py_ssize_t last)
{
    return NAME(page)(1, k, w, first, last);
}

static TARGET float NAME(page_of_halves)(const job *k, const work *w, Py_ssize_t first, Py_ssize_t last)
{
    return NAME(page)(0, k, w, first, last);
}

/* LANES components of a row from column c on, zeros past the last. */
INLINE VF NAME(load)(const part *p, Py_ssize_t row, int c)
{
    const char *at = p->data + row * p->stride + 2 * c;
    char tail[2 * LANES] = {0};
    if (p->columns - c < LANES)
        at = memcpy(tail, at, 2 * (size_t)(p->columns - c));
    return CONVERT_HALVES(at);
}

/* Up to LANES rows as int8, with what one code is worth in a unit vector. */
static TARGET void NAME(quantise)(const job *k, Py_ssize_t first, Py_ssize_t last, int8_t *codes, float *scales)
{
    const int rows = last - first < LANES ? (int)(last - first) : LANES;
    const VF tiny = OP(set1_ps)(TINY), most = OP(set1_ps)(127);
    VF peaks[LANES], squares[LANES];
    float factors[LANES], lanes[LANES];
    for (int i = 0; i < LANES; i++) {
        VF largest = OP(setzero_ps)(), sum = OP(setzero_ps)();
        for (const part *p = k->parts; i < rows && p < k->parts + k->n_parts; p++)
            for (int c = 0; c < p->columns; c += LANES) {
                VF v = NAME(load)(p, first + i, c);
                largest = OP(max_ps)(largest, ABSOLUTE(v));
                sum = OP(fmadd_ps)(v, v, sum);
            }
        peaks[i] = largest;
        squares[i] = sum;
    }
    VF peak = NAME(fold)(0, peaks), length = OP(sqrt_ps)(NAME(fold)(1, squares));
    OP(storeu_ps)(factors, OP(div_ps)(most, OP(max_ps)(peak, tiny)));
    OP(storeu_ps)(lanes, OP(div_ps)(OP(div_ps)(peak, most), OP(max_ps)(length, tiny)));
    memcpy(scales + first, lanes, (size_t)rows * sizeof *scales);
    for (int i = 0; i < rows; i++) {
        int8_t *out = codes + (first + i) * k->width;
        for (const part *p = k->parts; p < k->parts + k->n_parts; out += p->columns, p++)
            for (int c = 0; c < p->columns; c += LANES) {
                VF v = OP(mul_ps)(NAME(load)(p, first + i, c), OP(set1_ps)(factors[i]));
                int8_t some[LANES];
                STORE_CODES(some, OP(cvtps_epi32)(v)); /* rounds halves to even, as numpy's rint */
                if (p->columns - c < LANES)
                    memcpy(out + c, some, (size_t)(p->columns - c));
                else
                    memcpy(out + c, some, LANES);
            }
    }
}

static const tier NAME(tier) = {
    .words = WORDS, .lanes = LANES, .page = {NAME(page_of_halves), NAME(page_of_bytes)}, .quantise = NAME(quantise)};

#undef INLINE
#undef NAME
#undef TARGET
#undef LANES
#undef GROUP
#undef WORDS
#undef VI
#undef VF
#undef OP
#undef LOAD_BYTES
#undef LOAD_HALVES
#undef CONVERT_HALVES
#undef JOIN_EVEN
#undef JOIN_ODD
#undef SPLIT_BYTES
#undef ADD_BYTES
#undef ABSOLUTE
#undef STORE_CODES
