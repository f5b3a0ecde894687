/* SPDX-License-Identifier: Apache-2.0 */
/* page: reads a text. Line by line the samples are copied with their new labels; a span is opened where the family
 * changes, and the spans are sorted at the end. */
#include <stdlib.h>
#include <string.h>

#include "policy/node/exposition/exposition_priv.h"

#define SPANS_FIRST 64U
#define SPANS_MOST  (1U << 20)

const char *const exposition_types[] = {"untyped", "counter", "gauge", "histogram", "summary"};

struct page_maker {
	const struct exposition_cfg *cfg;
	struct exposition_stats *stats;
	struct cgn_buf out, lead; /* lead: the labels that every sample gets */
	struct exposition_span *span;
	uint32_t n, cap;
	bool no_memory;
};

/* ---- lines ---- */

static void value_put(struct cgn_buf *b, struct cgn_str plain)
{
	for (size_t i = 0; i < plain.n; i++) {
		char c = plain.p[i];
		if (c == '\\' || c == '"')
			cgn_buf_char(b, '\\');
		if (c == '\n')
			cgn_buf_putz(b, "\\n");
		else
			cgn_buf_char(b, c);
	}
}

static bool is_ours(struct cgn_str label)
{
	return cgn_str_is(label, "cgn_target") || cgn_str_is(label, "instance");
}

/* Return true if |name| is among the |n| labels before it. */
static bool is_double(const struct cgn_str *names, size_t n, struct cgn_str name)
{
	for (size_t i = 0; i < n; i++)
		if (cgn_str_eq(names[i], name))
			return true;
	return false;
}

/* Append the labels of the sample. False: they are not valid. */
static bool labels_put(struct cgn_buf *b, const struct prom_sample *s)
{
	struct cgn_str names[EXPOSITION_LABELS + 1], rest = s->labels, value;
	size_t n = 0;
	if (!cgn_utf8_valid(rest.p, rest.n))
		return false;
	while (n <= EXPOSITION_LABELS && prom_next_label(&rest, &names[n], &value)) {
		struct cgn_str name = names[n];
		bool ours = is_ours(name), exported = cgn_str_starts(name, "exported_");
		if (n == EXPOSITION_LABELS || memchr(name.p, ':', name.n) != NULL ||
			is_double(names, n, name) ||
			(exported && is_ours((struct cgn_str){name.p + 9, name.n - 9})))
			return false;
		n++;
		cgn_buf_putz(b, ours ? ",exported_" : ",");
		cgn_buf_str(b, name);
		cgn_buf_putz(b, "=\"");
		cgn_buf_str(b, value);
		cgn_buf_char(b, '"');
	}
	return true;
}

/* Append the number in a form that every reader takes. False: it is none. */
static bool number_put(struct cgn_buf *b, const struct prom_sample *s)
{
	if (__builtin_isnan(s->value)) {
		cgn_buf_putz(b, "NaN");
		return true;
	}
	if (__builtin_isinf(s->value)) {
		cgn_buf_putz(b, s->value > 0 ? "+Inf" : "-Inf");
		return true;
	}
	for (size_t i = 0; i < s->number.n; i++)
		if (strchr("0123456789+-.eE", s->number.p[i]) == NULL)
			return false;
	cgn_buf_str(b, s->number);
	return true;
}

static bool sample_put(struct page_maker *m, const struct prom_sample *s)
{
	size_t before = m->out.n;
	cgn_buf_str(&m->out, s->name);
	cgn_buf_str(&m->out, cgn_buf_view(&m->lead));
	bool good = labels_put(&m->out, s);
	cgn_buf_putz(&m->out, "} ");
	good = good && number_put(&m->out, s);
	cgn_buf_char(&m->out, '\n');
	if (!good && !m->out.bad)
		m->out.n = before;
	return good;
}

/* ---- families ---- */

static struct exposition_span *span_open(struct page_maker *m, struct cgn_str name)
{
	if (m->n == m->cap) {
		uint32_t cap = m->cap > 0 ? 2 * m->cap : SPANS_FIRST;
		struct exposition_span *more =
			cap <= SPANS_MOST ? reallocarray(m->span, cap, sizeof *more) : NULL;
		if (more == NULL) {
			m->no_memory = true;
			return NULL;
		}
		m->span = more;
		m->cap = cap;
	}
	struct exposition_span *s = &m->span[m->n];
	*s = (struct exposition_span){.name_at = (uint32_t)m->out.n,
		.name_n = (uint32_t)name.n,
		.order = m->n};
	cgn_buf_str(&m->out, name);
	s->text_at = (uint32_t)m->out.n;
	m->n++;
	return s;
}

static struct exposition_span *span_last(struct page_maker *m)
{
	return m->n > 0 ? &m->span[m->n - 1] : NULL;
}

static struct cgn_str name_of(const struct page_maker *m, const struct exposition_span *s)
{
	return (struct cgn_str){m->out.p + s->name_at, s->name_n};
}

/* Is |sample| of the family, by its name or with one of the endings of the family's type? */
static bool is_member(const struct page_maker *m, const struct exposition_span *s, struct cgn_str sample)
{
	static const char *const ends[][5] = {[1] = {"_total", "_created"},
		[3] = {"_bucket", "_sum", "_count", "_created"},
		[4] = {"_sum", "_count", "_created"}};
	struct cgn_str family = name_of(m, s);
	if (sample.n < family.n || memcmp(sample.p, family.p, family.n) != 0)
		return false;
	struct cgn_str end = {sample.p + family.n, sample.n - family.n};
	bool fits = end.n == 0;
	for (size_t i = 0; s->type < CGN_COUNT(ends) && i < 5 && ends[s->type][i] != NULL; i++)
		fits = fits || cgn_str_is(end, ends[s->type][i]);
	return fits;
}

/* Return the span for a comment about |name|: the last one while it has no samples, or a new one. */
static struct exposition_span *span_for(struct page_maker *m, struct cgn_str name)
{
	struct exposition_span *last = span_last(m);
	if (last != NULL && last->text_n == 0 && cgn_str_eq(name_of(m, last), name))
		return last;
	return span_open(m, name);
}

static void type_take(struct page_maker *m, struct cgn_str name, struct cgn_str type)
{
	struct exposition_span *s = span_for(m, name);
	for (uint32_t i = 0; s != NULL && i < CGN_COUNT(exposition_types); i++)
		if (cgn_str_is(type, exposition_types[i]))
			s->type = i;
}

static void help_take(struct page_maker *m, struct cgn_str name, struct cgn_str text)
{
	struct exposition_span *s = span_for(m, name);
	if (s == NULL || text.n == 0 || !cgn_utf8_valid(text.p, text.n))
		return;
	s->help_at = (uint32_t)m->out.n;
	s->help_n = (uint32_t)text.n;
	cgn_buf_str(&m->out, text);
	s->text_at = (uint32_t)m->out.n;
}

static void comment_take(struct page_maker *m, struct cgn_str line)
{
	struct cgn_str rest = line;
	(void)cgn_str_split(&rest, ' '); /* # */
	struct cgn_str what = cgn_str_split(&rest, ' '), name = cgn_str_split(&rest, ' ');
	if (!prom_is_name(name) || rest.p == NULL)
		return;
	if (cgn_str_is(what, "HELP"))
		help_take(m, name, rest);
	else if (cgn_str_is(what, "TYPE"))
		type_take(m, name, cgn_str_trim(rest));
}

static void sample_take(struct page_maker *m, const struct prom_sample *s)
{
	struct exposition_span *to = span_last(m);
	if (m->stats->samples == m->cfg->max_samples) {
		m->stats->cut++;
		return;
	}
	if (to == NULL || !is_member(m, to, s->name))
		to = span_open(m, s->name);
	if (to == NULL)
		return;
	if (!sample_put(m, s)) {
		m->stats->skipped++;
		return;
	}
	m->stats->samples++;
	to->text_n = (uint32_t)m->out.n - to->text_at;
}

static void line_take(struct page_maker *m, struct cgn_str line)
{
	struct prom_sample s;
	if (line.n > 0 && line.p[line.n - 1] == '\r')
		line.n--;
	line = cgn_str_trim(line);
	if (line.n == 0)
		return;
	if (line.p[0] == '#')
		comment_take(m, line);
	else if (prom_sample_of(line, &s))
		sample_take(m, &s);
	else
		m->stats->skipped++;
}

/* ---- the page ---- */

static int span_order(const void *a, const void *b, void *arg)
{
	const struct exposition_span *x = a, *y = b;
	const char *bytes = arg;
	int by_name = cgn_str_order((struct cgn_str){bytes + x->name_at, x->name_n},
		(struct cgn_str){bytes + y->name_at, y->name_n});
	return by_name != 0 ? by_name : x->order < y->order ? -1 : x->order > y->order;
}

static void lead_make(struct page_maker *m)
{
	cgn_buf_putz(&m->lead, "{cgn_target=\"");
	value_put(&m->lead, m->cfg->target);
	cgn_buf_putz(&m->lead, "\",instance=\"");
	value_put(&m->lead, m->cfg->instance);
	cgn_buf_char(&m->lead, '"');
}

/* Remove the spans without samples: families that were only announced. */
static void empty_drop(struct page_maker *m)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < m->n; i++)
		if (m->span[i].text_n > 0)
			m->span[kept++] = m->span[i];
	m->n = kept;
}

static struct exposition_page *page_of(struct page_maker *m)
{
	struct exposition_page *p = CGN_NEW(struct exposition_page);
	empty_drop(m);
	p->n = m->n;
	p->n_bytes = m->out.n;
	if (m->n > 0) {
		p->span = realloc(m->span, m->n * sizeof *p->span);
		p->bytes = realloc(m->out.p, m->out.n);
		if (p->span == NULL)
			p->span = m->span; /* Not smaller, then. */
		if (p->bytes == NULL)
			p->bytes = m->out.p;
		m->span = NULL;
		m->out = (struct cgn_buf){0};
		qsort_r(p->span, p->n, sizeof *p->span, span_order, p->bytes);
	}
	return p;
}

CGN_RC exposition_page_make(struct cgn_str text, const struct exposition_cfg *cfg,
	struct exposition_page **out, struct exposition_stats *stats, struct cgn_err *err)
{
	struct page_maker m = {.cfg = cfg, .stats = stats, .out.limit = UINT32_MAX};
	struct cgn_str rest = text;
	*stats = (struct exposition_stats){0};
	*out = NULL;
	lead_make(&m);
	while (rest.p != NULL && rest.n > 0 && !m.no_memory && !m.out.bad && !m.lead.bad)
		line_take(&m, cgn_str_split(&rest, '\n'));
	if (!m.no_memory && !m.out.bad && !m.lead.bad)
		*out = page_of(&m);
	free(m.span);
	cgn_buf_fini(&m.out);
	cgn_buf_fini(&m.lead);
	return *out != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "no memory for the text");
}

void exposition_page_free(struct exposition_page **take)
{
	struct exposition_page *p = CGN_TAKE(take);
	if (p == NULL)
		return;
	free(p->bytes);
	free(p->span);
	free(p);
}

size_t exposition_page_bytes(const struct exposition_page *p)
{
	return sizeof *p + p->n_bytes + p->n * sizeof *p->span;
}
