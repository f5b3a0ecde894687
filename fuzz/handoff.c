/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz handoff: bodies of both legs are JSON with each reserved key at most once; the filter of cached tokens gives the
 * same bytes however the answer is cut. First byte: the dialect and the leg. */
#include "policy/node/handoff/handoff.h"
#include "policy/node/handoff/cached.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void filter_check(struct cgn_str text, bool events)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf whole = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf cut = {0};
	struct cached_filter f, g;
	cached_filter_init(&f, events);
	cached_filter_init(&g, events);
	f.known = g.known = true;
	(void)cached_filter_feed(&f, text, &whole);
	for (size_t i = 0; i < text.n; i++)
		(void)cached_filter_feed(&g, (struct cgn_str){text.p + i, 1}, &cut);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&whole), cgn_buf_view(&cut)));
}

static void body_check(enum handoff_kind kind, struct json_val body, struct cgn_str params)
{
	const struct handoff_end end = {.kind = kind, .host = CGN_STR("h"), .port = 1};
	const struct handoff_job job = {.path = CGN_STR("/v1/chat/completions"),
		.body = body,
		.prefill = &end,
		.params = params};
	for (enum handoff_leg leg = HANDOFF_PREFILL; leg <= HANDOFF_DECODE; leg++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		struct json_val doc, value;
		struct cgn_str key;
		size_t times = 0;
		handoff_body(&job, leg, &out);
		CGN_MUST(cgn_ok(json_parse(cgn_buf_view(&out), &doc, NULL, NULL)));
		for (struct json_iter it = json_iter_of(doc); json_next_member(&it, &key, &value);)
			times += json_key_is(key, "kv_transfer_params") ||
				json_key_is(key, "bootstrap_room") ||
				json_key_is(key, "disaggregated_params");
		CGN_MUST(times == 1);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf params = {0};
	struct json_val body;
	if (n == 0)
		return 0;
	enum handoff_kind kind = (enum handoff_kind)(HANDOFF_NIXL + data[0] % (HANDOFF_KINDS - HANDOFF_NIXL));
	struct cgn_str text = {(const char *)data + 1, n - 1};
	filter_check(text, (data[0] & 0x80) != 0);
	if (!cgn_ok(handoff_params_read(kind, text, &params, NULL)) || params.n == 0) {
		cgn_buf_fini(&params);
		cgn_buf_putz(&params, "{}");
	}
	/* A document nested as deeply as the parser allows gets no deeper here: only members at the top are added. */
	if (cgn_ok(json_parse(text, &body, NULL, NULL)) && body.type == JSON_OBJECT)
		body_check(kind, body, cgn_buf_view(&params));
	return 0;
}
