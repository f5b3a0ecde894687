/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz usagescan: the counts and the text of an answer are the same for any cuts, and agree with a parser's where the answer is
 * a document; clients are shown no usage. The first byte chooses the cuts. */
#include <stdlib.h>

#include "base/core/err.h"
#include "base/json/json.h"
#include "policy/node/engine/usagescan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void scan_text(struct cgn_str text, size_t step, struct usagescan *s)
{
	*s = (struct usagescan){0};
	for (size_t at = 0; at < text.n; at += step) {
		struct cgn_str part = {text.p + at, text.n - at < step ? text.n - at : step};
		char *chunk = cgn_str_dupz(part); /* A block of its own, freed after the call. */
		CGN_MUST(chunk != NULL);
		usagescan_feed(s, (struct cgn_str){chunk, part.n});
		free(chunk);
	}
}

static void usage_equal(const struct usage *a, const struct usage *b)
{
	CGN_MUST(a->has_prompt == b->has_prompt && a->has_completion == b->has_completion &&
		a->has_cached == b->has_cached && a->absurd == b->absurd);
	CGN_MUST(a->prompt_tokens == b->prompt_tokens && a->completion_tokens == b->completion_tokens &&
		a->cached_tokens == b->cached_tokens);
}

/* The member "completion_tokens" of the last "usage" at the top is the count, however the names are written. */
static void check_document(struct cgn_str text, const struct usagescan *s)
{
	struct json_val root, usage, v, other;
	uint64_t tokens = 0;
	if (!cgn_ok(json_parse(text, &root, NULL, NULL)) || root.type != JSON_OBJECT)
		return;
	/* Members that may have "usage" themselves are left out here. */
	if (json_get(root, "message", &other) || json_get(root, "response", &other) ||
		json_get(root, "x_groq", &other) || !json_get(root, "usage", &usage) ||
		usage.type != JSON_OBJECT)
		return;
	if (json_get(usage, "completion_tokens", &v) && json_u64(v, &tokens) && tokens <= USAGE_MOST &&
		v.type == JSON_NUMBER && v.raw.n < USAGESCAN_NUMBER)
		CGN_MUST(s->found && s->usage.has_completion && s->usage.completion_tokens == tokens);
}

/* Events without their usage have fewer bytes, and nothing more to leave out. */
static void check_shown(struct cgn_str text)
{
	struct cgn_buf once = {0}, twice = {0};
	if (usage_events_shown(text, &once))
		CGN_MUST(once.n < text.n && !usage_events_shown(cgn_buf_view(&once), &twice));
	CGN_MUST(!once.bad && twice.n == 0);
	cgn_buf_fini(&once);
	cgn_buf_fini(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct usagescan whole, parts;
	if (n < 2)
		return 0;
	struct cgn_str text = {(const char *)data + 1, n - 1};
	scan_text(text, text.n, &whole);
	scan_text(text, 1 + data[0] % 16, &parts);
	CGN_MUST(whole.found == parts.found && whole.found_own == parts.found_own &&
		whole.found_timings == parts.found_timings);
	usage_equal(&whole.usage, &parts.usage);
	usage_equal(&whole.own, &parts.own);
	const struct estimate_seen a = usagescan_seen(&whole), b = usagescan_seen(&parts);
	CGN_MUST(a.bytes == b.bytes && a.events == b.events && a.bytes <= text.n);
	check_document(text, &whole);
	check_shown(text);
	return 0;
}
