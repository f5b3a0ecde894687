/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz respcmd: the same commands come out for any cuts of the bytes, arguments lie within their text, and no
 * byte is read twice or lost. */
#include <stdlib.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "policy/kv/respcmd/respcmd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The commands as text, to compare. */
struct heard {
	struct cgn_buf said;
	size_t taken;
	enum respcmd_outcome end;
};

static void note_command(struct heard *h, const struct respcmd *c, struct cgn_str text)
{
	cgn_buf_fmt(&h->said, "%d %u:", (int)c->id, c->n);
	for (size_t i = 0; i < c->n; i++) {
		struct cgn_str a = respcmd_arg(c, text, i);
		CGN_MUST(a.n == 0 || (a.p >= text.p && a.p + a.n <= text.p + c->at));
		cgn_buf_fmt(&h->said, "%zu,", a.n);
		cgn_buf_str(&h->said, a);
	}
	cgn_buf_char(&h->said, '\n');
}

/* Read as a server does, with |step| bytes at a time; values that come apart are skipped. */
static struct heard hear_commands(struct cgn_str bytes, size_t step)
{
	struct heard h = {.end = RESPCMD_MORE};
	struct respcmd c;
	struct cgn_buf text = {0};
	size_t value = 0;
	const char *why = NULL;
	respcmd_init(&c);
	for (size_t at = 0; at < bytes.n && h.end != RESPCMD_BAD;) {
		size_t take = step < bytes.n - at ? step : bytes.n - at;
		size_t skip = value < take ? value : take;
		value -= skip;
		cgn_buf_add(&text, bytes.p + at + skip, take - skip);
		at += take;
		while (value == 0) {
			size_t before = c.at;
			h.end = respcmd_step(&c, cgn_buf_view(&text), &why);
			CGN_MUST(c.at >= before && c.at <= text.n && text.n <= RESPCMD_MAX_TEXT + bytes.n);
			if (h.end == RESPCMD_MORE || h.end == RESPCMD_BAD)
				break;
			if (h.end == RESPCMD_GOT) {
				note_command(&h, &c, cgn_buf_view(&text));
				h.taken += c.at;
				CGN_MUST(c.at > 0);
				cgn_buf_eat(&text, c.at);
				respcmd_reset(&c);
				continue;
			}
			CGN_MUST(c.value > RESPCMD_APART && c.value <= RESPCMD_MAX_VALUE);
			size_t here = text.n - c.at < c.value ? text.n - c.at : c.value;
			memmove(text.p + c.at, text.p + c.at + here, text.n - c.at - here);
			text.n -= here;
			value = c.value - here;
		}
	}
	CGN_MUST(h.end != RESPCMD_BAD || why != NULL);
	respcmd_fini(&c);
	cgn_buf_fini(&text);
	return h;
}

static void check_arguments(struct cgn_str s)
{
	struct digest d;
	uint32_t segment;
	int64_t v;
	uint64_t off, len;
	size_t half = s.n / 2;
	(void)respcmd_key(s, &d, &segment);
	(void)respcmd_int(s, &v);
	(void)cgn_str_glob((struct cgn_str){s.p, half}, (struct cgn_str){s.p + half, s.n - half});
	CGN_MUST(cgn_str_glob(CGN_STR("*"), s));
	if (s.n < 17)
		return;
	int64_t ends[2];
	memcpy(ends, s.p, sizeof ends);
	respcmd_range(ends[0], ends[1], s.n, &off, &len);
	CGN_MUST(off + len <= s.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_str bytes = {(const char *)data, n};
	if (n > 65536)
		return 0;
	struct heard whole = hear_commands(bytes, n),
		     cut = hear_commands(bytes, n > 0 ? 1 + data[0] % 16 : 1);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&whole.said), cgn_buf_view(&cut.said)));
	CGN_MUST(whole.taken == cut.taken && whole.end == cut.end);
	cgn_buf_fini(&whole.said);
	cgn_buf_fini(&cut.said);
	if (n < 4096)
		check_arguments(bytes);
	return 0;
}
