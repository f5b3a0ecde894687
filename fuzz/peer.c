/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz peer: the summary of another cluster, as an answer to one who knows nothing, and then as one to one who knows the
 * set of that answer. A set that is read is ascending, and is the same after it was written again. */
#include <stdlib.h>

#include "policy/route/peer/code.h"
#include "policy/route/peer/summary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_set(const struct peer_set *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf code = {0};
	CGN_ON_EXIT(peer_set_unref) struct peer_set *again = NULL;
	for (uint32_t i = 1; i < s->n; i++)
		CGN_MUST(s->v[i - 1] < s->v[i]);
	for (uint32_t i = 0; i < s->n; i += 1 + s->n / 16)
		CGN_MUST(peer_set_match(s, 0, &(uint64_t){(uint64_t)s->v[i] << 32}, 1) == 1);
	peer_set_put(s, &code);
	struct cgn_cursor c = cgn_cursor_of(cgn_buf_view(&code));
	CGN_MUST(cgn_ok(peer_set_get(&c, &again, NULL)) && cgn_cursor_end(&c));
	CGN_MUST(again->n == s->n && again->sum == s->sum);
	peer_set_unref(&again);
	code.n = 0;
	peer_gaps_put(s, PEER_WIDTH - s->width, UINT64_C(1) << s->width, &code);
	c = cgn_cursor_of(cgn_buf_view(&code));
	CGN_MUST(cgn_ok(peer_gaps_get(&c, PEER_WIDTH - s->width, UINT64_C(1) << s->width, &again, NULL)) &&
		cgn_cursor_end(&c));
	CGN_MUST(again->n == s->n && again->sum == s->sum && again->width == s->width);
}

/* Read |text| as the answer to |known|, and know then what it tells. */
static void check_answer(struct cgn_str text, struct peer_known *known)
{
	static struct peer_summary s;
	struct peer_set *now = NULL;
	struct cgn_err err;
	char *copy = malloc(text.n + 1);
	CGN_MUST(copy != NULL);
	memcpy(copy, text.p, text.n);
	if (cgn_ok(peer_summary_get((struct cgn_str){copy, text.n}, known, &s, &now, &err))) {
		CGN_MUST(now->n == s.blocks && now->sum == s.sum);
		check_set(now);
		peer_set_unref(&known->set);
		*known = (struct peer_known){now, s.generation, s.shift};
	}
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct peer_known known = {0};
	struct peer_set *set = NULL;
	struct cgn_str text = {(const char *)data, n};
	struct cgn_cursor c = cgn_cursor_of(text);
	if (n < 2)
		return 0;
	if (cgn_ok(peer_set_get(&c, &set, NULL)))
		check_set(set);
	peer_set_unref(&set);
	size_t cut = data[0] | (size_t)data[1] << 8;
	cut = 2 + cut % (n - 1);
	check_answer((struct cgn_str){text.p + 2, cut - 2}, &known);
	check_answer((struct cgn_str){text.p + cut, n - cut}, &known);
	peer_set_unref(&known.set);
	return 0;
}
