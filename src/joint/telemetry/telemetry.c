/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry: the registry of series and the updates of their cells. The lock guards who exists; values are
 * relaxed atomics. */
#include "joint/telemetry/telemetry_priv.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

const struct metric_row metric_rows[METRIC_COUNT] = {
#define METRIC(id, name, type, labels, help) {name, METRIC_##type, labels, help},
#include "joint/telemetry/metrics.def"
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
	struct metric_series *chains[METRIC_CHAINS];
	struct metric_series *first, *last;
	size_t n;
	uint64_t n_forgotten;        /* counts up: orders the forgotten by age */
	struct metric_cell overflow; /* static, so that metric_get cannot fail */
	bool overflowed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct metric_book books[METRIC_COUNT];

struct key { /* label values, made safe to print */
	char text[METRIC_MAX_LABELS][METRIC_MAX_VALUE + 1];
	size_t n;
	uint64_t hash;
};

static struct key key_of(const char *const *values, size_t n);
static struct metric_series *series_find(const struct metric_book *b, const struct key *k);
static struct metric_series *series_new(struct metric_book *b, const struct key *k, enum metric_type type);

size_t metric_label_count(enum metric_id id)
{
	const char *labels = metric_rows[id].labels;
	size_t n = *labels != '\0';
	for (const char *p = labels; *p != '\0'; p++)
		n += *p == ',';
	return n;
}

struct metric_cell *metric_get(enum metric_id id, const char *const *label_values, size_t n)
{
	CGN_MUST((unsigned)id < METRIC_COUNT);
	CGN_MUST(n == metric_label_count(id) && n <= METRIC_MAX_LABELS);
	struct key k = key_of(label_values, n);
	struct metric_book *b = &books[id];
	pthread_mutex_lock(&lock);
	struct metric_series *s = series_find(b, &k);
	if (s == NULL)
		s = series_new(b, &k, metric_rows[id].type);
	struct metric_cell *c = s != NULL ? &s->cell : &b->overflow;
	if (s != NULL) {
		s->forgotten = 0;
	} else {
		c->type = metric_rows[id].type;
		b->overflowed = true;
	}
	pthread_mutex_unlock(&lock);
	return c;
}

void metric_add(struct metric_cell *c, uint64_t n)
{
	CGN_MUST(c->type == METRIC_COUNTER);
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
}

uint64_t metric_count(const struct metric_cell *c)
{
	if (c->type == METRIC_GAUGE)
		return 0;
	if (c->type == METRIC_COUNTER)
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

static size_t label_index(enum metric_id id, const char *label)
{
	struct cgn_str rest = cgn_str_of(metric_rows[id].labels);
	for (size_t i = 0; rest.p != NULL; i++)
		if (cgn_str_is(cgn_str_split(&rest, ','), label))
			return i;
	return SIZE_MAX;
}

void metric_forget(enum metric_id id, const char *label, const char *value)
{
	size_t at = label_index(id, label);
	CGN_MUST(at != SIZE_MAX);
	struct key k = key_of(&value, 1);
	struct metric_book *b = &books[id];
	pthread_mutex_lock(&lock);
	for (struct metric_series *s = b->first; s != NULL; s = s->next)
		if (s->forgotten == 0 && strcmp(s->values[at], k.text[0]) == 0)
			s->forgotten = ++b->n_forgotten;
	pthread_mutex_unlock(&lock);
}

void metric_each(enum metric_id id, void (*fn)(void *, const char *const *, const struct metric_cell *),
	void *arg)
{
	static const char *const other[METRIC_MAX_LABELS] = {"_other", "_other", "_other", "_other"};
	struct metric_book *b = &books[id];
	pthread_mutex_lock(&lock);
	for (struct metric_series *s = b->first; s != NULL; s = s->next)
		if (s->forgotten == 0)
			fn(arg, (const char *const *)s->values, &s->cell);
	if (b->overflowed)
		fn(arg, other, &b->overflow);
	pthread_mutex_unlock(&lock);
}

/* A label value comes from the world (model names do): one that is not UTF-8 would make Prometheus refuse the
 * whole page. */
static void value_clean(char *dst, const char *value)
{
	size_t n = strnlen(value, METRIC_MAX_VALUE + 1);
	if (n > METRIC_MAX_VALUE)
		for (n = METRIC_MAX_VALUE; n > 0 && ((unsigned char)value[n] & 0xc0) == 0x80;)
			n--;
	memcpy(dst, value, n);
	dst[n] = '\0';
	if (cgn_utf8_valid(dst, n))
		return;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)dst[i] >= 0x80)
			dst[i] = '?';
}

static uint64_t hash_text(uint64_t h,
	const char *z) /* FNV-1a, the NUL included so that values cannot run together */
{
	do
		h = (h ^ (unsigned char)*z) * 0x100000001b3U;
	while (*z++ != '\0');
	return h;
}

static struct key key_of(const char *const *values, size_t n)
{
	struct key k;
	k.n = n;
	k.hash = 0xcbf29ce484222325U;
	for (size_t i = 0; i < n; i++) {
		value_clean(k.text[i], values[i] != NULL ? values[i] : "");
		k.hash = hash_text(k.hash, k.text[i]);
	}
	return k;
}

static struct metric_series *series_find(const struct metric_book *b, const struct key *k)
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

/* At the limit the series that was forgotten longest ago makes room, so that nodes that come and go under new
 * names stay visible and memory stays bounded. Only the label values are freed: who still holds the old cell
 * writes into valid memory. */
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
	for (size_t i = 0; i < METRIC_MAX_LABELS; i++) {
		free(old->values[i]);
		old->values[i] = NULL;
	}
	atomic_store_explicit(&old->cell.value, 0, memory_order_relaxed);
	for (size_t i = 0; i <= METRIC_BOUNDS; i++)
		atomic_store_explicit(&old->cell.bucket[i], 0, memory_order_relaxed);
	return old;
}

static struct metric_series *series_alloc(struct metric_book *b)
{
	if (b->n == METRIC_MAX_SERIES)
		return series_recycle(b);
	struct metric_series *s = calloc(1, sizeof *s);
	if (s == NULL)
		return NULL;
	struct metric_series **end = &b->first;
	if (b->last != NULL)
		end = &b->last->next;
	*end = b->last = s;
	b->n++;
	return s;
}

/* NULL at the limit or without memory: the caller shows the overflow series instead. */
static struct metric_series *series_new(struct metric_book *b, const struct key *k, enum metric_type type)
{
	char *values[METRIC_MAX_LABELS] = {NULL};
	bool have = true;
	for (size_t i = 0; i < k->n; i++)
		have = (values[i] = cgn_str_dupz(cgn_str_of(k->text[i]))) != NULL && have;
	struct metric_series *s = have ? series_alloc(b) : NULL;
	if (s == NULL) {
		for (size_t i = 0; i < k->n; i++)
			free(values[i]);
		return NULL;
	}
	memcpy(s->values, values, sizeof values);
	s->cell.type = type;
	s->hash = k->hash;
	s->chain = b->chains[k->hash % METRIC_CHAINS];
	b->chains[k->hash % METRIC_CHAINS] = s;
	return s;
}
