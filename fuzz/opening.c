/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz opening: the verdict is the same for any cuts of the answer, and does not change. The first byte chooses the route, the
 * type and the cuts. */
#include "policy/answer/opening/opening.h"
#include "base/core/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static enum opening_says opening_read(uint8_t form, struct cgn_str text, size_t step)
{
	static const char *const types[] = {"application/json", "text/event-stream", "", "text/plain"};
	static const char *const paths[] = {"", "/v1/chat/completions", "/v1/rerank", "/v1/embeddings"};
	struct opening o;
	opening_init(&o, (enum opening_route)(form % 3), opening_answers(cgn_str_of(paths[form / 16 % 4])),
		cgn_str_of(types[form / 4 % 4]));
	enum opening_says said = o.says;
	for (size_t at = 0; at < text.n; at += step) {
		enum opening_says says = opening_feed(&o,
			(struct cgn_str){text.p + at, text.n - at < step ? text.n - at : step});
		CGN_MUST(said == OPENING_MORE || says == said);
		said = says;
	}
	CGN_MUST(opening_end(&o) != OPENING_MORE && (said == OPENING_MORE || o.says == said));
	return o.says;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n == 0)
		return 0;
	struct cgn_str text = {(const char *)data + 1, n - 1};
	(void)opening_tail_fails(text);
	(void)opening_tail_breaks_off(text, data[0] & 1);
	(void)opening_tail_ends(text, data[0] & 1);
	CGN_MUST(opening_part_useful(text) <= text.n);
	CGN_MUST(opening_read(data[0], text, text.n + 1) == opening_read(data[0], text, 1 + data[0] % 7u));
	return 0;
}
