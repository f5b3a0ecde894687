/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry: the registry of series and the updates of their cells, which are relaxed atomics. */
#include "base/mix/mix.h"
#include "joint/report/telemetry/telemetry_priv.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TELEMETRY_TAG 0x7e1e3e70U

static const struct metric_row joint_rows[METRIC_JOINT_COUNT] = {
#define METRIC METRIC_ROW
#include "joint/report/telemetry/metrics.def"
#undef METRIC
};

/* From a routing decision (10 us) to a long answer (120 s). */
const cgn_nsec metric_bounds[METRIC_BOUNDS] = {
	10 * CGN_USEC,
	50 * CGN_USEC,
	100 * CGN_USEC,
	250 * CGN_USEC,
	500 * CGN_USEC,
	1 * CGN_MSEC,
	2500 * CGN_USEC,
	5 * CGN_MSEC,
	10 * CGN_MSEC,
	25 * CGN_MSEC,
	50 * CGN_MSEC,
	75 * CGN_MSEC,
	100 * CGN_MSEC,
	250 * CGN_MSEC,
	500 * CGN_MSEC,
	750 * CGN_MSEC,
	1 * CGN_SEC,
	2500 * CGN_MSEC,
	5 * CGN_SEC,
	7500 * CGN_MSEC,
	10 * CGN_SEC,
	30 * CGN_SEC,
	60 * CGN_SEC,
	120 * CGN_SEC,
};

struct metric_book { /* all series of one metric */
	const struct metric_row *row;
	struct metric_series *chains[METRIC_CHAINS];
	struct metric_series *first, *last;
	size_t n;
	uint64_t n_forgotten;        /* counts up: orders the forgotten series by age */
	struct metric_cell overflow; /* part of the book, so that metric_get cannot fail */
	bool overflowed;
};

struct telemetry {
	uint32_t tag;
	pthread_mutex_t lock; /* guards which series exist */
	unsigned n;
	struct metric_book books[]; /* by metric id */
};

struct label_key { /* label values, made safe to print */
	char text[METRIC_MAX_LABELS][METRIC_MAX_VALUE + 1];
	size_t n;
	uint64_t hash;
};

static struct label_key key_of(const char *const *values, size_t n);
static struct metric_series *series_find(const struct metric_book *b, const struct label_key *k);
static struct metric_series *series_new(struct metric_book *b, const struct label_key *k);

struct telemetry *telemetry_new(const struct metric_row *rows, size_t n)
{
	struct telemetry *t =
		cgn_zeroed(1, sizeof *t + (METRIC_JOINT_COUNT + n) * sizeof t->books[0], CGN_HERE);
	t->tag = TELEMETRY_TAG;
	t->n = METRIC_JOINT_COUNT + (unsigned)n;
	(void)pthread_mutex_init(&t->lock, NULL);
	for (unsigned i = 0; i < t->n; i++)
		t->books[i].row = i < METRIC_JOINT_COUNT ? &joint_rows[i] : &rows[i - METRIC_JOINT_COUNT];
	return t;
}

static void cell_init(struct metric_cell *c, enum metric_type type)
{
	c->type = type == METRIC_QUANTILES ? METRIC_HISTOGRAM : type;
	if (type != METRIC_QUANTILES || c->fine != NULL)
		return;
	c->fine = CGN_NEW(struct metric_fine);
	atomic_store_explicit(&c->fine->least, UINT64_MAX, memory_order_relaxed);
}

static void cell_clear(struct metric_cell *c)
{
	atomic_store_explicit(&c->value, 0, memory_order_relaxed);
	for (size_t i = 0; i <= METRIC_BOUNDS; i++)
		atomic_store_explicit(&c->bucket[i], 0, memory_order_relaxed);
	for (size_t i = 0; c->fine != NULL && i < QUANTILE_BUCKETS; i++)
		atomic_store_explicit(&c->fine->in[i], 0, memory_order_relaxed);
}

static void values_free(char **values)
{
	for (size_t i = 0; i < METRIC_MAX_LABELS; i++) {
		free(values[i]);
		values[i] = NULL;
	}
}

void telemetry_free(struct telemetry **take)
{
	struct telemetry *t = CGN_TAKE_LIVE(take, TELEMETRY_TAG);
	if (t == NULL)
		return;
	for (unsigned i = 0; i < t->n; i++)
		for (struct metric_series *s = t->books[i].first, *next; s != NULL; s = next) {
			next = s->next;
			values_free(s->values);
			free(s->cell.fine);
			free(s);
		}
	for (unsigned i = 0; i < t->n; i++)
		free(t->books[i].overflow.fine);
	(void)pthread_mutex_destroy(&t->lock);
	t->tag = 0;
	free(t);
}

static struct metric_book *book_of(struct telemetry *t, unsigned id)
{
	CGN_LIVE(t, TELEMETRY_TAG);
	CGN_MUST(id < t->n);
	return &t->books[id];
}

static size_t label_count(const char *labels)
{
	size_t n = *labels != '\0';
	for (const char *p = labels; *p != '\0'; p++)
		n += *p == ',';
	return n;
}

/* The labels of the overflow series, which is the only one of that name. */
static bool key_is_other(const struct label_key *k)
{
	size_t same = 0;
	while (same < k->n && strcmp(k->text[same], "other") == 0)
		same++;
	return k->n > 0 && same == k->n;
}

struct metric_cell *metric_get(struct telemetry *t, unsigned id, const char *const *label_values, size_t n)
{
	struct metric_book *b = book_of(t, id);
	CGN_MUST(n == label_count(b->row->labels) && n <= METRIC_MAX_LABELS);
	struct label_key k = key_of(label_values, n);
	pthread_mutex_lock(&t->lock);
	bool other = key_is_other(&k);
	struct metric_series *s = other ? NULL : series_find(b, &k);
	if (s == NULL && !other)
		s = series_new(b, &k);
	struct metric_cell *c = s != NULL ? &s->cell : &b->overflow;
	if (s != NULL) {
		s->forgotten = 0;
	} else {
		cell_init(c, b->row->type);
		b->overflowed = true;
	}
	pthread_mutex_unlock(&t->lock);
	return c;
}

void metric_add(struct metric_cell *c, uint64_t n)
{
	CGN_MUST(c->type == METRIC_COUNTER || c->type == METRIC_MILLIONTHS);
	atomic_fetch_add_explicit(&c->value, n, memory_order_relaxed);
}

static uint64_t bits_of(double v)
{
	uint64_t u;
	memcpy(&u, &v, sizeof u);
	return u;
}

static double double_of(uint64_t bits)
{
	double v;
	memcpy(&v, &bits, sizeof v);
	return v;
}

void metric_set(struct metric_cell *c, double v)
{
	CGN_MUST(c->type == METRIC_GAUGE);
	atomic_store_explicit(&c->value, bits_of(v), memory_order_relaxed);
}

void metric_shift(struct metric_cell *c, int64_t delta)
{
	CGN_MUST(c->type == METRIC_GAUGE);
	uint64_t was = atomic_load_explicit(&c->value, memory_order_relaxed), is;
	do {
		is = bits_of(double_of(was) + (double)delta);
	} while (!atomic_compare_exchange_weak_explicit(&c->value, &was, is, memory_order_relaxed,
		memory_order_relaxed));
}

double metric_gauge(const struct metric_cell *c)
{
	return double_of(atomic_load_explicit(&c->value, memory_order_relaxed));
}

/* The least only falls and the most only rises, until the series is recycled. */
static void fine_observe(struct metric_fine *f, uint64_t v)
{
	uint64_t least = atomic_load_explicit(&f->least, memory_order_relaxed),
		 most = atomic_load_explicit(&f->most, memory_order_relaxed);
	while (v < least &&
		!atomic_compare_exchange_weak_explicit(&f->least, &least, v, memory_order_relaxed,
			memory_order_relaxed))
		continue;
	while (v > most &&
		!atomic_compare_exchange_weak_explicit(&f->most, &most, v, memory_order_relaxed,
			memory_order_relaxed))
		continue;
	atomic_fetch_add_explicit(&f->in[quantile_bucket(v)], 1, memory_order_relaxed);
}

void metric_observe(struct metric_cell *c, cgn_nsec v)
{
	CGN_MUST(c->type == METRIC_HISTOGRAM);
	size_t lo = 0, hi = METRIC_BOUNDS;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (metric_bounds[mid] < v)
			lo = mid + 1;
		else
			hi = mid;
	}
	atomic_fetch_add_explicit(&c->bucket[lo], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->value, v, memory_order_relaxed);
	if (c->fine != NULL)
		fine_observe(c->fine, v);
}

uint64_t metric_count(const struct metric_cell *c)
{
	if (c->type == METRIC_GAUGE)
		return 0;
	if (c->type != METRIC_HISTOGRAM)
		return atomic_load_explicit(&c->value, memory_order_relaxed);
	uint64_t n = 0;
	for (size_t i = 0; i <= METRIC_BOUNDS; i++)
		n += atomic_load_explicit(&c->bucket[i], memory_order_relaxed);
	return n;
}

cgn_nsec metric_sum(const struct metric_cell *c)
{
	CGN_MUST(c->type == METRIC_HISTOGRAM);
	return atomic_load_explicit(&c->value, memory_order_relaxed);
}

static size_t label_index(const struct metric_row *row, const char *label)
{
	struct cgn_str rest = cgn_str_of(row->labels);
	for (size_t i = 0; rest.p != NULL; i++)
		if (cgn_str_is(cgn_str_split(&rest, ','), label))
			return i;
	return SIZE_MAX;
}

static void book_forget(struct telemetry *t, struct metric_book *b, size_t at, const char *value)
{
	struct label_key k = key_of(&value, 1);
	pthread_mutex_lock(&t->lock);
	for (struct metric_series *s = b->first; s != NULL; s = s->next)
		if (s->forgotten == 0 && strcmp(s->values[at], k.text[0]) == 0)
			s->forgotten = ++b->n_forgotten;
	pthread_mutex_unlock(&t->lock);
}

void metric_forget(struct telemetry *t, unsigned id, const char *label, const char *value)
{
	struct metric_book *b = book_of(t, id);
	size_t at = label_index(b->row, label);
	CGN_MUST(at != SIZE_MAX);
	book_forget(t, b, at, value);
}

void telemetry_forget(struct telemetry *t, const char *label, const char *value)
{
	CGN_LIVE(t, TELEMETRY_TAG);
	for (unsigned i = 0; i < t->n; i++) {
		size_t at = label_index(t->books[i].row, label);
		if (at != SIZE_MAX)
			book_forget(t, &t->books[i], at, value);
	}
}

void telemetry_each(struct telemetry *t,
	void (*fn)(struct telemetry *t, unsigned id, const struct metric_row *row, void *arg), void *arg)
{
	CGN_LIVE(t, TELEMETRY_TAG);
	for (unsigned i = 0; i < t->n; i++)
		fn(t, i, t->books[i].row, arg);
}

void metric_each(struct telemetry *t, unsigned id,
	void (*fn)(void *, const char *const *, const struct metric_cell *), void *arg)
{
	static const char *const other[METRIC_MAX_LABELS] = {"other", "other", "other", "other"};
	struct metric_book *b = book_of(t, id);
	pthread_mutex_lock(&t->lock);
	for (struct metric_series *s = b->first; s != NULL; s = s->next)
		if (s->forgotten == 0)
			fn(arg, (const char *const *)s->values, &s->cell);
	if (b->overflowed)
		fn(arg, other, &b->overflow);
	pthread_mutex_unlock(&t->lock);
}

void telemetry_reference_joint(struct cgn_buf *out)
{
	telemetry_reference(joint_rows, METRIC_JOINT_COUNT, out);
}

/* Label values come from the network (names of models). One that is not UTF-8 would make Prometheus refuse the
 * whole page, and a control character would reach the terminal of a reader. */
static void value_clean(char *dst, const char *value)
{
	char room[4 * (METRIC_MAX_VALUE + 1)]; /* A byte becomes four characters at most. */
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	cgn_buf_shown(&b, (struct cgn_str){value, strnlen(value, METRIC_MAX_VALUE + 1)});
	size_t n = b.n;
	if (n > METRIC_MAX_VALUE)
		for (n = METRIC_MAX_VALUE; n > 0 && ((unsigned char)room[n] & 0xc0) == 0x80;)
			n--;
	memcpy(dst, room, n);
	dst[n] = '\0';
}

static struct label_key key_of(const char *const *values, size_t n)
{
	struct label_key k;
	k.n = n;
	k.hash = MIX_FNV1A;
	for (size_t i = 0; i < n; i++) {
		value_clean(k.text[i], values[i] != NULL ? values[i] : "");
		/* With the final NUL, so that values cannot run together. */
		k.hash = mix_fnv1a(k.hash, k.text[i], strlen(k.text[i]) + 1);
	}
	return k;
}

static struct metric_series *series_find(const struct metric_book *b, const struct label_key *k)
{
	for (struct metric_series *s = b->chains[k->hash % METRIC_CHAINS]; s != NULL; s = s->chain) {
		size_t same = 0;
		while (same < k->n && strcmp(s->values[same], k->text[same]) == 0)
			same++;
		if (s->hash == k->hash && same == k->n)
			return s;
	}
	return NULL;
}

/* At the limit, reuse the series that was forgotten first: nodes that come and go under new names stay visible
 * and memory stays bounded. Only the label values are freed: a holder of the old cell writes into valid
 * memory. */
static struct metric_series *series_recycle(struct metric_book *b)
{
	struct metric_series *old = NULL;
	for (struct metric_series *s = b->first; s != NULL; s = s->next)
		if (s->forgotten != 0 && (old == NULL || s->forgotten < old->forgotten))
			old = s;
	if (old == NULL)
		return NULL;
	struct metric_series **at = &b->chains[old->hash % METRIC_CHAINS];
	while (*at != old)
		at = &(*at)->chain;
	*at = old->chain;
	values_free(old->values);
	cell_clear(&old->cell);
	return old;
}

static struct metric_series *series_alloc(struct metric_book *b)
{
	if (b->n == METRIC_MAX_SERIES)
		return series_recycle(b);
	struct metric_series *s = CGN_NEW(struct metric_series);
	struct metric_series **end = &b->first;
	if (b->last != NULL)
		end = &b->last->next;
	*end = b->last = s;
	b->n++;
	return s;
}

/* Return NULL at the limit: the caller uses the overflow series instead. */
static struct metric_series *series_new(struct metric_book *b, const struct label_key *k)
{
	struct metric_series *s = series_alloc(b);
	if (s == NULL)
		return NULL;
	for (size_t i = 0; i < METRIC_MAX_LABELS; i++)
		s->values[i] = i < k->n ? cgn_str_dupz(cgn_str_of(k->text[i])) : NULL;
	cell_init(&s->cell, b->row->type);
	s->hash = k->hash;
	s->chain = b->chains[k->hash % METRIC_CHAINS];
	b->chains[k->hash % METRIC_CHAINS] = s;
	return s;
}
