/* SPDX-License-Identifier: Apache-2.0 */
/* merge: writes the families of all pages in the order of their names. */
#include <stdlib.h>
#include <string.h>

#include "policy/node/exposition/exposition_priv.h"

void exposition_merge_begin(struct exposition_merge *m, const struct exposition_page *const *pages, size_t n,
	const struct exposition_match *match)
{
	*m = (struct exposition_merge){.pages = pages, .n = n, .match = match};
	m->at = CGN_NEW_ARRAY(uint32_t, n);
}

void exposition_merge_end(struct exposition_merge *m)
{
	free(m->at);
	m->at = NULL;
}

static const struct exposition_span *span_next(const struct exposition_merge *m, size_t page)
{
	const struct exposition_page *p = m->pages[page];
	return m->at[page] < p->n ? &p->span[m->at[page]] : NULL;
}

static bool is_of_family(const struct exposition_merge *m, size_t page)
{
	const struct exposition_span *s = span_next(m, page);
	return s != NULL && cgn_str_eq(exposition_name(m->pages[page], s), m->family);
}

/* Find the next family by name. False: there is none. */
static bool family_next(struct exposition_merge *m)
{
	struct cgn_str least = {NULL, 0};
	for (size_t i = 0; i < m->n; i++) {
		const struct exposition_span *s = span_next(m, i);
		if (s == NULL)
			continue;
		struct cgn_str name = exposition_name(m->pages[i], s);
		if (least.p == NULL || cgn_str_order(name, least) < 0)
			least = name;
	}
	m->family = least;
	m->page = 0;
	m->headed = false;
	return least.p != NULL;
}

/* Write HELP of the first page that has one, and the type on which the pages agree. */
static void head_put(struct exposition_merge *m, struct cgn_buf *out)
{
	struct cgn_str help = {NULL, 0};
	uint32_t type = EXPOSITION_UNTYPED;
	bool agreed = true;
	for (size_t i = 0; i < m->n; i++) {
		if (!is_of_family(m, i))
			continue;
		const struct exposition_span *s = span_next(m, i);
		if (help.n == 0 && s->help_n > 0)
			help = (struct cgn_str){m->pages[i]->bytes + s->help_at, s->help_n};
		agreed = agreed &&
			(type == EXPOSITION_UNTYPED || s->type == EXPOSITION_UNTYPED || s->type == type);
		type = s->type != EXPOSITION_UNTYPED ? s->type : type;
	}
	if (help.n > 0)
		cgn_buf_fmt(out, "# HELP %.*s %.*s\n", CGN_STR_ARG(m->family), CGN_STR_ARG(help));
	cgn_buf_fmt(out, "# TYPE %.*s %s\n", CGN_STR_ARG(m->family),
		exposition_types[agreed ? type : EXPOSITION_UNTYPED]);
	m->headed = true;
}

static void chosen_put(struct exposition_merge *m, struct cgn_str text, struct cgn_buf *out)
{
	struct cgn_str rest = text;
	struct prom_sample s;
	while (rest.p != NULL && rest.n > 0) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (!prom_sample_of(line, &s) || !exposition_match_fits(m->match, &s))
			continue;
		if (!m->headed)
			head_put(m, out);
		cgn_buf_str(out, line);
		cgn_buf_char(out, '\n');
	}
}

/* Write the spans of the family that |page| has. HELP and TYPE are of the whole family, so they are written before the
 * page goes on to its next one. */
static void page_put(struct exposition_merge *m, size_t page, struct cgn_buf *out)
{
	const struct exposition_page *p = m->pages[page];
	if (m->match == NULL && !m->headed)
		head_put(m, out);
	for (uint32_t i = m->at[page]; i < p->n && cgn_str_eq(exposition_name(p, &p->span[i]), m->family);
		i++) {
		struct cgn_str text = {p->bytes + p->span[i].text_at, p->span[i].text_n};
		if (m->match == NULL)
			cgn_buf_str(out, text);
		else
			chosen_put(m, text, out);
	}
}

static void family_leave(struct exposition_merge *m)
{
	for (size_t i = 0; i < m->n; i++)
		while (is_of_family(m, i))
			m->at[i]++;
	m->family = (struct cgn_str){NULL, 0};
}

bool exposition_merge_next(struct exposition_merge *m, struct cgn_buf *out)
{
	if (m->family.p == NULL && !family_next(m))
		return false;
	while (m->page < m->n && !is_of_family(m, m->page))
		m->page++;
	if (m->page < m->n && (m->match == NULL || exposition_match_family(m->match, m->family)))
		page_put(m, m->page++, out);
	else
		family_leave(m);
	return true;
}
