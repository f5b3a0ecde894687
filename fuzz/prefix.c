/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz prefix: any body makes a chain; a smaller bound only shortens it; the blocks do not depend on the
 * memory bound. */
#include "policy/text/prefix/prefix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct prefix_chain make_chain(struct json_val body, struct cgn_arena *a, size_t limit_bytes,
	size_t max_blocks)
{
	const struct prefix_params params = {.model = CGN_STR("m"),
		.block_bytes = 16,
		.max_blocks = max_blocks};
	cgn_arena_init(a, limit_bytes);
	struct prefix_chain made = prefix_chain_make(&params, body, a);
	CGN_MUST(made.n <= max_blocks);
	CGN_MUST(a->used_bytes <= limit_bytes);
	return made;
}

static void chain_opens(struct prefix_chain shorter, struct prefix_chain longer)
{
	CGN_MUST(shorter.n <= longer.n);
	for (size_t i = 0; i < shorter.n; i++)
		CGN_MUST(shorter.short_digests[i] == longer.short_digests[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct json_val body;
	struct cgn_arena large, small;
	if (!cgn_ok(json_parse((struct cgn_str){(const char *)data, n}, &body, NULL, NULL)))
		return 0;
	struct prefix_chain all = make_chain(body, &large, (size_t)1 << 26, 1 << 20);
	struct prefix_chain again = make_chain(body, &small, (size_t)1 << 26, 1 << 20);
	CGN_MUST(again.n == all.n);
	chain_opens(again, all);
	cgn_arena_fini(&small);
	cgn_arena_fini(&large);
	return 0;
}
