/* SPDX-License-Identifier: Apache-2.0 */
/* match: selectors of series. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "policy/node/exposition/exposition_priv.h"

#define TERMS_MOST 16
#define VALUE_BYTES \
	512 /* Room for a selector's value, and for the label that it is compared with; a longer one fits nothing. */

/* A comparison with an expression takes at most this; a value that needs more fits neither =~ nor !~. */
#define MATCH_STEPS    20000
#define MATCH_HEAP_KIB 256

enum match_op { MATCH_IS, MATCH_IS_NOT, MATCH_LIKE, MATCH_UNLIKE };

struct match_term {
	char label[128], value[VALUE_BYTES];
	enum match_op op;
	pcre2_code *regex; /* Owned; NULL unless the term is MATCH_LIKE or MATCH_UNLIKE. */
};

struct match_selector {
	size_t n;
	struct match_term term[TERMS_MOST];
};

struct exposition_match {
	size_t n;
	struct match_selector *selector[EXPOSITION_SELECTORS];
	pcre2_match_data *data;
	pcre2_match_context *limits;
};

static void selector_free(struct match_selector *s)
{
	for (size_t i = 0; s != NULL && i < s->n; i++)
		pcre2_code_free(s->term[i].regex);
	free(s);
}

void exposition_match_free(struct exposition_match **take)
{
	struct exposition_match *list = CGN_TAKE(take);
	for (size_t i = 0; list != NULL && i < list->n; i++)
		selector_free(list->selector[i]);
	if (list != NULL) {
		pcre2_match_data_free(list->data);
		pcre2_match_context_free(list->limits);
	}
	free(list);
}

/* ---- reading ---- */

/* A compiled expression has at most 64 KiB: PCRE2 refuses a larger one. */
static CGN_RC regex_make(struct match_term *t, struct cgn_err *err)
{
	int code = 0;
	PCRE2_SIZE at = 0;
	PCRE2_UCHAR why[120];
	t->regex = pcre2_compile((PCRE2_SPTR)t->value, PCRE2_ZERO_TERMINATED,
		PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOTALL | PCRE2_UTF | PCRE2_MATCH_INVALID_UTF |
			PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C,
		&code, &at, NULL);
	if (t->regex != NULL)
		return CGN_OK;
	(void)pcre2_get_error_message(code, why, sizeof why);
	return CGN_FAIL(err, INVALID, "\"%.100s\" is not a regular expression: %s at byte %zu", t->value,
		(const char *)why, at);
}

static CGN_RC term_add(struct match_selector *s, struct cgn_str label, enum match_op op, struct cgn_str value,
	struct cgn_err *err)
{
	struct match_term *t = &s->term[s->n];
	if (s->n == TERMS_MOST)
		return CGN_FAIL(err, INVALID, "a selector has more than %d labels", TERMS_MOST);
	*t = (struct match_term){.op = op};
	if (!cgn_str_copyz(t->label, sizeof t->label, label) ||
		!cgn_str_copyz(t->value, sizeof t->value, value))
		return CGN_FAIL(err, INVALID, "a label or its value is too long");
	if (op >= MATCH_LIKE)
		CGN_TRY(regex_make(t, err));
	s->n++;
	return CGN_OK;
}

/* Take "=~" and so on from |s|. */
static bool op_take(struct cgn_str *s, enum match_op *op)
{
	static const struct {
		const char *text;
		enum match_op op;
	} ops[] = {{"!=", MATCH_IS_NOT}, {"!~", MATCH_UNLIKE}, {"=~", MATCH_LIKE}, {"=", MATCH_IS}};
	for (size_t i = 0; i < CGN_COUNT(ops); i++) {
		size_t n = strlen(ops[i].text);
		if (!cgn_str_starts(*s, ops[i].text))
			continue;
		*s = (struct cgn_str){s->p + n, s->n - n};
		*op = ops[i].op;
		return true;
	}
	return false;
}

static size_t name_length(struct cgn_str s)
{
	size_t n = 0;
	while (n < s.n && prom_is_name((struct cgn_str){s.p, n + 1}))
		n++;
	return n;
}

/* Read LABEL OP "VALUE" from |s|; a backslash in the value escapes the next character. */
static CGN_RC term_read(struct match_selector *to, struct cgn_str *s, struct cgn_err *err)
{
	char value[VALUE_BYTES];
	struct cgn_str label = {s->p, name_length(*s)};
	enum match_op op;
	size_t n = 0, i = 1;
	*s = cgn_str_trim((struct cgn_str){s->p + label.n, s->n - label.n});
	if (label.n == 0 || !op_take(s, &op))
		return CGN_FAIL(err, INVALID, "a label and =, !=, =~ or !~ is expected in {}");
	*s = cgn_str_trim(*s);
	if (s->n == 0 || s->p[0] != '"')
		return CGN_FAIL(err, INVALID, "the value of %.*s must be in double quotes",
			CGN_STR_ARG(label));
	for (; i < s->n && s->p[i] != '"' && n < sizeof value; i++) {
		if (s->p[i] == '\\' && i + 1 < s->n)
			i++;
		value[n++] = s->p[i];
	}
	if (i >= s->n || s->p[i] != '"')
		return CGN_FAIL(err, INVALID, "the value of %.*s has no end, or is longer than %d bytes",
			CGN_STR_ARG(label), VALUE_BYTES);
	*s = cgn_str_trim((struct cgn_str){s->p + i + 1, s->n - i - 1});
	return term_add(to, label, op, (struct cgn_str){value, n}, err);
}

static CGN_RC selector_read(struct match_selector *to, struct cgn_str text, struct cgn_err *err)
{
	struct cgn_str s = cgn_str_trim(text), name = {s.p, name_length(s)};
	s = cgn_str_trim((struct cgn_str){s.p + name.n, s.n - name.n});
	if (name.n > 0)
		CGN_TRY(term_add(to, CGN_STR("__name__"), MATCH_IS, name, err));
	if (s.n == 0 && name.n > 0)
		return CGN_OK;
	if (s.n < 2 || s.p[0] != '{' || s.p[s.n - 1] != '}')
		return CGN_FAIL(err, INVALID,
			"a selector is NAME, {label=\"value\"} or NAME{label=\"value\"}");
	s = cgn_str_trim((struct cgn_str){s.p + 1, s.n - 2});
	while (s.n > 0) {
		CGN_TRY(term_read(to, &s, err));
		if (s.n > 0 && s.p[0] != ',')
			return CGN_FAIL(err, INVALID, "a comma is expected between labels");
		if (s.n > 0)
			s = cgn_str_trim((struct cgn_str){s.p + 1, s.n - 1});
	}
	return to->n > 0 ? CGN_OK
			 : CGN_FAIL(err, INVALID, "an empty selector fits everything: leave match[] out");
}

static struct exposition_match *list_make(void)
{
	struct exposition_match *m = CGN_NEW(struct exposition_match);
	m->data = pcre2_match_data_create(1, NULL);
	m->limits = pcre2_match_context_create(NULL);
	if (m->data == NULL || m->limits == NULL)
		cgn_out_of_memory(sizeof *m, CGN_HERE);
	(void)pcre2_set_match_limit(m->limits, MATCH_STEPS);
	(void)pcre2_set_heap_limit(m->limits, MATCH_HEAP_KIB);
	return m;
}

CGN_RC exposition_match_add(struct exposition_match **list, struct cgn_str selector, struct cgn_err *err)
{
	if (*list == NULL)
		*list = list_make();
	if ((*list)->n == EXPOSITION_SELECTORS)
		return CGN_FAIL(err, INVALID, "more than %d match[]", EXPOSITION_SELECTORS);
	struct match_selector *s = CGN_NEW(struct match_selector);
	cgn_rc rc = selector_read(s, selector, err);
	if (cgn_ok(rc))
		(*list)->selector[(*list)->n++] = s;
	else
		selector_free(s);
	return rc;
}

/* ---- comparing ---- */

/* Copy the plain value of the label; a label that is not there is empty. False: it is too long. */
static bool label_value(const struct prom_sample *s, const char *label, char out[VALUE_BYTES])
{
	struct cgn_str raw = {NULL, 0};
	size_t n = 0;
	if (strcmp(label, "__name__") == 0)
		return cgn_str_copyz(out, VALUE_BYTES, s->name);
	(void)prom_label(s, label, &raw);
	for (size_t i = 0; i < raw.n; i++) {
		char c = raw.p[i];
		if (c == '\\' && i + 1 < raw.n)
			c = raw.p[++i] == 'n' ? '\n' : raw.p[i];
		if (n == VALUE_BYTES - 1)
			return false;
		out[n++] = c;
	}
	out[n] = '\0';
	return true;
}

static bool regex_fits(const struct exposition_match *list, const struct match_term *t, const char *value)
{
	int rc = pcre2_match(t->regex, (PCRE2_SPTR)value, strlen(value), 0, 0, list->data, list->limits);
	if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
		return false;
	return (rc >= 0) == (t->op == MATCH_LIKE);
}

static bool term_fits(const struct exposition_match *list, const struct match_term *t,
	const struct prom_sample *s)
{
	char value[VALUE_BYTES];
	if (!label_value(s, t->label, value))
		return t->op == MATCH_IS_NOT || t->op == MATCH_UNLIKE;
	switch (t->op) {
	case MATCH_IS:
		return strcmp(value, t->value) == 0;
	case MATCH_IS_NOT:
		return strcmp(value, t->value) != 0;
	case MATCH_LIKE:
	case MATCH_UNLIKE:
		return regex_fits(list, t, value);
	}
	return false;
}

bool exposition_match_fits(const struct exposition_match *list, const struct prom_sample *s)
{
	for (size_t i = 0; i < list->n; i++) {
		const struct match_selector *sel = list->selector[i];
		size_t k = 0;
		while (k < sel->n && term_fits(list, &sel->term[k], s))
			k++;
		if (k == sel->n)
			return true;
	}
	return false;
}

/* A sample's name begins with its family's. */
static bool family_may_fit(const struct match_selector *s, struct cgn_str family)
{
	for (size_t i = 0; i < s->n; i++) {
		const struct match_term *t = &s->term[i];
		if (t->op == MATCH_IS && strcmp(t->label, "__name__") == 0 &&
			strncmp(t->value, family.p, family.n) != 0)
			return false;
	}
	return true;
}

bool exposition_match_family(const struct exposition_match *list, struct cgn_str family)
{
	for (size_t i = 0; i < list->n; i++)
		if (family_may_fit(list->selector[i], family))
			return true;
	return false;
}
