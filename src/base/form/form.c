/* SPDX-License-Identifier: Apache-2.0 */
#include "base/form/form.h"

#define BOUNDARY_MAX 70 /* RFC 2046 */
#define MARK_MAX     (BOUNDARY_MAX + 4)

/* The value of the parameter |key| in "type; key=value; key=\"value\"". Escapes in a quoted value are kept. */
static struct cgn_str param_of(struct cgn_str text, const char *key)
{
	struct cgn_str none = {NULL, 0};
	size_t n = strlen(key);
	for (size_t at = 0; at < text.n;) {
		while (at < text.n && (text.p[at] == ' ' || text.p[at] == '\t' || text.p[at] == ';'))
			at++;
		size_t begin = at;
		while (at < text.n && text.p[at] != '=' && text.p[at] != ';')
			at++;
		struct cgn_str name = {text.p + begin, at - begin};
		if (at == text.n || text.p[at] == ';')
			continue;
		bool quoted = ++at < text.n && text.p[at] == '"';
		begin = at += quoted;
		while (at < text.n && text.p[at] != (quoted ? '"' : ';'))
			at += quoted && text.p[at] == '\\' && at + 1 < text.n ? 2 : 1;
		struct cgn_str value = {text.p + begin, at - begin};
		if (quoted && at == text.n)
			return none; /* the quote is not closed */
		at += quoted;
		if (name.n == n && cgn_str_eq_nocase(name, cgn_str_of(key)))
			return quoted ? value : cgn_str_trim(value);
	}
	return none;
}

struct cgn_str form_boundary(struct cgn_str content_type)
{
	const struct cgn_str none = {NULL, 0};
	struct cgn_str rest = content_type, type = cgn_str_trim(cgn_str_split(&rest, ';'));
	if (rest.p == NULL || !cgn_str_eq_nocase(type, CGN_STR("multipart/form-data")))
		return none;
	struct cgn_str boundary = param_of(rest, "boundary");
	for (size_t i = 0; i < boundary.n; i++)
		if (boundary.p[i] < ' ' || boundary.p[i] > '~' || boundary.p[i] == '\\')
			return none;
	return boundary.n > 0 && boundary.n <= BOUNDARY_MAX ? boundary : none;
}

/* ---- parts ---- */

struct walk {
	struct cgn_str body;
	size_t at;
	char mark[MARK_MAX]; /* CR LF "--" boundary */
	size_t n_mark;
};

static cgn_rc form_bad(const struct walk *w, const char *what, struct cgn_err *err)
{
	return CGN_FAIL(err, INVALID, "the form is malformed at byte %zu: %s", w->at, what);
}

static bool next_is(const struct walk *w, const char *text, size_t n)
{
	return w->body.n - w->at >= n && memcmp(w->body.p + w->at, text, n) == 0;
}

/* Go behind the boundary that begins the first part; there may be text before it. */
static CGN_RC walk_begin(struct walk *w, struct cgn_err *err)
{
	if (next_is(w, w->mark + 2, w->n_mark - 2)) {
		w->at = w->n_mark - 2;
		return CGN_OK;
	}
	const char *found = w->body.n > 0 ? memmem(w->body.p, w->body.n, w->mark, w->n_mark) : NULL;
	if (found == NULL)
		return form_bad(w, "its boundary is not in it", err);
	w->at = (size_t)(found - w->body.p) + w->n_mark;
	return CGN_OK;
}

/* Behind a boundary: true if it was the last one. */
static bool is_closing(const struct walk *w)
{
	return next_is(w, "--", 2);
}

/* Read the rest of the boundary's line. */
static CGN_RC line_end(struct walk *w, struct cgn_err *err)
{
	while (w->at < w->body.n && (w->body.p[w->at] == ' ' || w->body.p[w->at] == '\t'))
		w->at++;
	if (!next_is(w, "\r\n", 2))
		return form_bad(w, "a boundary's line does not end in CR LF", err);
	w->at += 2;
	return CGN_OK;
}

/* Read a part's header fields; |*disposition| is the value of Content-Disposition. */
static CGN_RC head_read(struct walk *w, struct cgn_str *disposition, struct cgn_err *err)
{
	static const char key[] = "content-disposition";
	size_t left = w->body.n - w->at, most = left < FORM_HEAD_MAX ? left : FORM_HEAD_MAX;
	const size_t begin = w->at;
	*disposition = (struct cgn_str){NULL, 0};
	while (w->at - begin < most) {
		const char *p = w->body.p + w->at;
		const char *end = memmem(p, begin + most - w->at, "\r\n", 2);
		if (end == NULL)
			break;
		struct cgn_str rest = {p, (size_t)(end - p)};
		w->at += rest.n + 2;
		if (rest.n == 0)
			return CGN_OK;
		struct cgn_str name = cgn_str_split(&rest, ':');
		if (rest.p != NULL && cgn_str_eq_nocase(cgn_str_trim(name), cgn_str_of(key)))
			*disposition = cgn_str_trim(rest);
	}
	return form_bad(w, "the header fields of a part do not end", err);
}

/* Read a part's content up to the next boundary, and go behind that. */
static CGN_RC content_read(struct walk *w, struct cgn_str *content, struct cgn_err *err)
{
	/* an empty content: the CR LF that ended the head begins the boundary */
	size_t from = w->at - 2;
	const char *end = memmem(w->body.p + from, w->body.n - from, w->mark, w->n_mark);
	if (end == NULL)
		return form_bad(w, "a part does not end", err);
	size_t stop = (size_t)(end - w->body.p);
	*content = (struct cgn_str){w->body.p + w->at, stop > w->at ? stop - w->at : 0};
	w->at = stop + w->n_mark;
	return CGN_OK;
}

/* |params|: of the part's Content-Disposition. */
static void field_take(struct form_field *fields, size_t n, struct cgn_str params, struct cgn_str value)
{
	struct cgn_str name = param_of(params, "name");
	for (size_t i = 0; i < n; i++) {
		if (!cgn_str_is(name, fields[i].name))
			continue;
		if (fields[i].times++ > 0)
			continue;
		fields[i].value = value;
		fields[i].filename = param_of(params, "filename");
	}
}

CGN_RC form_find(struct cgn_str body, struct cgn_str boundary, struct form_field *fields, size_t n,
	struct cgn_err *err)
{
	struct walk w = {.body = body, .n_mark = boundary.n + 4};
	CGN_MUST(boundary.n > 0 && boundary.n <= BOUNDARY_MAX);
	memcpy(w.mark, "\r\n--", 4);
	memcpy(w.mark + 4, boundary.p, boundary.n);
	for (size_t i = 0; i < n; i++) {
		fields[i].value = fields[i].filename = (struct cgn_str){NULL, 0};
		fields[i].times = 0;
	}
	CGN_TRY(walk_begin(&w, err));
	for (unsigned parts = 0; !is_closing(&w); parts++) {
		struct cgn_str disposition, content = {NULL, 0}, rest;
		if (parts == FORM_PARTS_MAX)
			return CGN_FAIL(err, INVALID, "the form has more than %d parts", FORM_PARTS_MAX);
		CGN_TRY(line_end(&w, err));
		CGN_TRY(head_read(&w, &disposition, err));
		CGN_TRY(content_read(&w, &content, err));
		rest = disposition;
		if (disposition.n > 0 &&
			cgn_str_eq_nocase(cgn_str_trim(cgn_str_split(&rest, ';')), CGN_STR("form-data")) &&
			rest.p != NULL)
			field_take(fields, n, rest, content);
	}
	return CGN_OK;
}
