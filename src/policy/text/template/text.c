/* SPDX-License-Identifier: Apache-2.0 */
/* template text: string operations on UTF-8. Positions and lengths are in characters; input strings are valid
 * UTF-8. */
#include <utf8proc.h>

#include "template_priv.h"
#include "text_priv.h"

size_t utf8_step(const char *p, const char *end, int32_t *code)
{
	unsigned char c = (unsigned char)*p;
	size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
	if (n == 1 || (size_t)(end - p) < n) {
		*code = c;
		return 1;
	}
	*code = c & (0xff >> (n + 1));
	for (size_t i = 1; i < n; i++)
		*code = *code << 6 | ((unsigned char)p[i] & 0x3f);
	return n;
}

size_t utf8_count(struct cgn_str s)
{
	size_t n = 0;
	for (size_t i = 0; i < s.n; i++)
		n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
	return n;
}

static int32_t last_code(struct cgn_str s, size_t *n)
{
	int32_t code;
	size_t at = s.n - 1;
	while (at > 0 && ((unsigned char)s.p[at] & 0xc0) == 0x80)
		at--;
	*n = s.n - at;
	(void)utf8_step(s.p + at, s.p + s.n, &code);
	return code;
}

bool text_is_space(int32_t code)
{
	if (code < 0x80)
		return code == ' ' || (code >= '\t' && code <= '\r') || (code >= 0x1c && code <= 0x1f);
	return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
		code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

static bool is_one_of(int32_t code, const struct cgn_str *chars)
{
	int32_t other;
	if (chars == NULL)
		return text_is_space(code);
	for (size_t at = 0; at < chars->n;) {
		at += utf8_step(chars->p + at, chars->p + chars->n, &other);
		if (other == code)
			return true;
	}
	return false;
}

struct cgn_str text_strip(struct cgn_str s, const struct cgn_str *chars, bool left, bool right)
{
	int32_t code;
	size_t n;
	while (left && s.n > 0) {
		n = utf8_step(s.p, s.p + s.n, &code);
		if (!is_one_of(code, chars))
			break;
		s.p += n;
		s.n -= n;
	}
	while (right && s.n > 0 && is_one_of(last_code(s, &n), chars))
		s.n -= n;
	return s;
}

static bool is_cased(int32_t code)
{
	return utf8proc_toupper(code) != code || utf8proc_tolower(code) != code;
}

/* Does a word begin behind |last|? */
static bool word_begins(enum text_case how, int32_t last)
{
	if (how == CASE_TITLE)
		return !is_cased(last);
	return last == '-' || last == '(' || last == '{' || last == '[' || last == '<' || text_is_space(last);
}

static size_t put_code(char *to, int32_t code, bool upper)
{
	if (upper && code == 0xdf) { /* The only common letter whose capital has two characters. */
		memcpy(to, "SS", 2);
		return 2;
	}
	return (size_t)utf8proc_encode_char(upper ? utf8proc_toupper(code) : utf8proc_tolower(code),
		(utf8proc_uint8_t *)to);
}

bool text_case(struct vm *vm, struct cgn_str s, enum text_case how, struct cgn_str *out)
{
	char *to = vm_get(vm, s.n + s.n / 2 + 4); /* A letter of 2 bytes may become one of 3. */
	size_t used = 0;
	int32_t code, last = ' ';
	if (to == NULL || !vm_spend(vm, s.n / 16 + 1))
		return false;
	for (size_t at = 0; at < s.n; last = code) {
		size_t from = at;
		at += utf8_step(s.p + at, s.p + s.n, &code);
		bool first = how == CASE_CAPITAL
			? from == 0
			: (how == CASE_TITLE || how == CASE_TITLE_WORDS) && word_begins(how, last);
		used += put_code(to + used, code, how == CASE_UPPER || first);
	}
	*out = (struct cgn_str){to, used};
	return true;
}

bool text_find(struct vm *vm, struct cgn_str s, struct cgn_str what, size_t *at)
{
	const char *hit = what.n == 0 ? s.p : s.n == 0 ? NULL : memmem(s.p, s.n, what.p, what.n);
	*at = what.n == 0 ? 0 : hit != NULL ? (size_t)(hit - s.p) : SIZE_MAX;
	return vm_spend_bytes(vm, (hit != NULL ? *at : s.n) + what.n);
}

/* The string that was joined last may grow in place, so that a loop that appends to a string costs only the
 * appended bytes. */
bool text_join(struct vm *vm, const struct cgn_str *parts, size_t n, struct cgn_str *out)
{
	struct cgn_buf *last = &vm->joined;
	bool again = parts[0].n > 0 && parts[0].p == last->p && parts[0].n == last->n;
	size_t total = 0;
	for (size_t i = 0; i < n; i++)
		if (parts[i].n > SIZE_MAX / 4 || __builtin_add_overflow(total, parts[i].n, &total))
			return vm_get(vm, SIZE_MAX) != NULL;
	if (!vm_spend_bytes(vm, again ? total - parts[0].n : total))
		return false;
	if (!again || last->cap < total) {
		size_t cap = again ? 2 * total : total;
		char *p = vm_get(vm, cap + 1);
		if (p == NULL || !vm_spend_bytes(vm, again ? parts[0].n : 0))
			return false;
		*last = cgn_buf_over(p, cap + 1);
		cgn_buf_str(last, parts[0]);
	}
	for (size_t i = 1; i < n; i++)
		cgn_buf_str(last, parts[i]);
	*out = cgn_buf_view(last);
	return true;
}

/* Built in the output's tail, because its length is not known before. */
bool text_replace(struct vm *vm, struct cgn_str s, struct cgn_str from, struct cgn_str to, int64_t count,
	struct cgn_str *out)
{
	size_t mark = vm_mark(vm), hit, step;
	struct value made;
	int32_t code;
	for (bool first = true; count != 0; count--, first = false) {
		if (!text_find(vm, s, from, &hit))
			return false;
		if (from.n == 0) { /* Insert before each character and at the end. */
			hit = first ? 0 : s.n > 0 ? utf8_step(s.p, s.p + s.n, &code) : SIZE_MAX;
		}
		if (hit == SIZE_MAX)
			break;
		step = hit + from.n;
		if (!vm_emit(vm, (struct cgn_str){s.p, hit}) || !vm_emit(vm, to))
			return false;
		s = (struct cgn_str){s.p + step, s.n - step};
	}
	if (!vm_emit(vm, s) || !vm_take(vm, mark, &made))
		return false;
	*out = made.s;
	return true;
}

/* Apply Python's rules for [from:to:step] to |n| elements: the first index and the count. */
bool slice_range(size_t n, const int64_t *from, const int64_t *to, int64_t step, int64_t *at, size_t *count)
{
	int64_t len = (int64_t)n, low = step > 0 ? 0 : -1, high = step > 0 ? len : len - 1;
	int64_t ends[2] = {step > 0 ? low : high, step > 0 ? high : low};
	const int64_t *asked[2] = {from, to};
	if (step == 0)
		return false;
	for (int i = 0; i < 2; i++) {
		if (asked[i] == NULL)
			continue;
		ends[i] = *asked[i] < 0 ? (*asked[i] < -len ? low : *asked[i] + len) : *asked[i];
		ends[i] = ends[i] < low ? low : ends[i] > high ? high : ends[i];
	}
	int64_t span = step > 0 ? ends[1] - ends[0] : ends[0] - ends[1];
	uint64_t stride = step > 0 ? (uint64_t)step : -(uint64_t)step;
	*at = ends[0];
	*count = span > 0 ? (size_t)(((uint64_t)span - 1) / stride + 1) : 0;
	return true;
}

bool text_slice(struct vm *vm, struct cgn_str s, const int64_t *from, const int64_t *to, int64_t step,
	struct cgn_str *out)
{
	int64_t at;
	size_t count, n = utf8_count(s);
	if (!vm_spend_bytes(vm, s.n))
		return false;
	if (!slice_range(n, from, to, step, &at, &count))
		return vm_type(vm, "the step of a slice is zero");
	*out = CGN_STR("");
	if (count == 0)
		return true;
	size_t *starts = vm_get(vm, (n + 1) * sizeof *starts), used = 0;
	char *p = vm_get(vm, s.n);
	if (starts == NULL || p == NULL)
		return false;
	for (size_t i = 0, byte = 0; byte < s.n; byte++)
		if (((unsigned char)s.p[byte] & 0xc0) != 0x80)
			starts[i++] = byte;
	starts[n] = s.n;
	if (step == 1) { /* A contiguous piece needs no copy. */
		*out = (struct cgn_str){s.p + starts[at], starts[(size_t)at + count] - starts[at]};
		return true;
	}
	for (size_t i = 0; i < count; i++) {
		const size_t *start = &starts[at + (int64_t)i * step];
		memcpy(p + used, s.p + start[0], start[1] - start[0]);
		used += start[1] - start[0];
	}
	*out = (struct cgn_str){p, used};
	return true;
}
