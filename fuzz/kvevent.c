/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz kvevent: batches of any bytes, live, replayed, out of order and repeated, into a source. The holdings
 * always have exactly the blocks that the source reports, and none after the source is freed. The first byte
 * of each piece chooses the operation. */
#include "policy/kv/kvsource/kvsource.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t seq;

static void source_step(struct kvsource *s, uint8_t what, struct cgn_str payload, cgn_nsec now)
{
	static const enum kvsource_input_type types[] = {KVSOURCE_IN_LIVE, KVSOURCE_IN_LIVE, KVSOURCE_IN_LIVE,
		KVSOURCE_IN_REPLAYED, KVSOURCE_IN_REPLAY_END, KVSOURCE_IN_CONNECTED, KVSOURCE_IN_TICK,
		KVSOURCE_IN_REPLAY_FAILED};
	struct kvsource_input in = {.type = types[what & 7], .seq = seq, .payload = payload, .why = "fuzz"};
	struct kvsource_orders out;
	seq += what >> 3 & 3;
	seq -= what >> 5 & 1 && seq > 0;
	if (what == 0xff)
		in.type = KVSOURCE_IN_DISCONNECTED;
	kvsource_step(s, &in, now, &out);
	CGN_MUST(!(out.replay && out.cancel_replay));
	CGN_MUST((kvsource_state(s) == KVSOURCE_GOOD) == (kvsource_why(s)[0] == '\0'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct kvsource *s = NULL;
	if (n < 2)
		return 0;
	const struct kvsource_cfg cfg = {.model = "m",
		.lora_is_model = (data[0] & 1) != 0,
		.block_tokens = 1U + (data[0] >> 1 & 3),
		.can_replay = (data[0] & 8) != 0,
		.max_blocks = 64};
	struct holdings *h = holdings_new(48, NULL, NULL);
	CGN_MUST(cgn_ok(kvsource_new(&cfg, h, &s, NULL)));
	cgn_nsec now = CGN_SEC;
	seq = 0;
	source_step(s, 5, (struct cgn_str){0}, now);
	source_step(s, 4, (struct cgn_str){0}, now);
	for (size_t at = 1; at + 2 <= n;) { /* Pieces: operation, length, payload. */
		size_t len = data[at + 1] < n - at - 2 ? data[at + 1] : n - at - 2;
		now += (cgn_nsec)data[at] * 100 * CGN_MSEC;
		source_step(s, data[at], (struct cgn_str){(const char *)data + at + 2, len}, now);
		at += 2 + len;
	}
	CGN_MUST(holdings_count(h) <= 48);
	kvsource_free(&s);
	CGN_MUST(holdings_count(h) == 0);
	holdings_free(&h);
	return 0;
}
