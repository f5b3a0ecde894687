/* SPDX-License-Identifier: Apache-2.0 */
#include "base/core/err.h"
#include "policy/answer/resume/resume_priv.h"

void resume_edit_put(struct edits *e, struct cgn_str old, struct cgn_str new)
{
	size_t i = e->n++;
	CGN_MUST(e->n <= EDITS_MAX);
	CGN_MUST(old.p >= e->doc.p && old.p + old.n <= e->doc.p + e->doc.n);
	for (; i > 0 && e->v[i - 1].old.p > old.p; i--) {
		bool own = e->v[i - 1].new.p == e->v[i - 1].number;
		e->v[i] = e->v[i - 1];
		if (own)
			e->v[i].new.p = e->v[i].number;
	}
	e->v[i].old = old;
	e->v[i].new = new;
}

void resume_edit_u64(struct edits *e, struct cgn_str old, uint64_t value)
{
	char digits[24];
	struct cgn_buf b = cgn_buf_over(digits, sizeof digits);
	cgn_buf_u64(&b, value);
	resume_edit_put(e, old, (struct cgn_str){NULL, 0});
	for (size_t i = 0; i < e->n; i++) {
		if (e->v[i].old.p != old.p)
			continue;
		memcpy(e->v[i].number, digits, b.n);
		e->v[i].new = (struct cgn_str){e->v[i].number, b.n};
	}
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

void resume_edit_drop(struct edits *e, struct json_val object, const char *key)
{
	struct json_iter it = json_iter_of(object);
	struct cgn_str name, found = {NULL, 0};
	struct json_val value;
	while (json_next_member(&it, &name, &value))
		if (json_key_is(name, key))
			found = (struct cgn_str){name.p - 1,
				(size_t)(value.raw.p + value.raw.n - (name.p - 1))};
	CGN_MUST(found.p != NULL);
	const char *from = found.p, *to = found.p + found.n;
	while (is_space(from[-1])) /* Stops at the opening brace at the latest. */
		from--;
	if (from[-1] == ',') {
		from--;
	} else {
		while (is_space(*to))
			to++;
		to += *to == ',';
	}
	resume_edit_put(e, (struct cgn_str){from, (size_t)(to - from)}, (struct cgn_str){NULL, 0});
}

void resume_edit_apply(const struct edits *e, struct cgn_buf *out)
{
	const char *at = e->doc.p;
	for (size_t i = 0; i < e->n; i++) {
		cgn_buf_add(out, at, (size_t)(e->v[i].old.p - at));
		cgn_buf_str(out, e->v[i].new);
		at = e->v[i].old.p + e->v[i].old.n;
	}
	cgn_buf_add(out, at, (size_t)(e->doc.p + e->doc.n - at));
}
