/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz kvbulk: a packet of any bytes. A message that was read is written again as the same bytes (except bits
 * outside a mask, which are dropped), and every item of a list can be read. */
#include "policy/kv/kvbulk/kvbulk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void put_items(const struct kvbulk_msg *m, struct cgn_buf *out)
{
	for (size_t i = 0; i < m->count; i++) {
		const struct block_info info =
			m->type == KVBULK_INFOS ? kvbulk_info(m, i) : (struct block_info){0};
		const struct block_change change =
			m->type == KVBULK_CHANGES ? kvbulk_change(m, i) : (struct block_change){0};
		const struct block_key key = m->type == KVBULK_LOOKUP || m->type == KVBULK_REMOVE
			? kvbulk_key(m, i)
			: (struct block_key){0};
		if (m->type == KVBULK_INFOS)
			kvbulk_add_info(out, &info);
		else if (m->type == KVBULK_CHANGES)
			kvbulk_add_change(out, &change);
		else if (m->type == KVBULK_VALUE)
			kvbulk_add_extent(out, kvbulk_extent(m, i));
		else if (m->type == KVBULK_RELEASE || m->type == KVBULK_GET)
			kvbulk_add_lease(out, kvbulk_lease(m, i));
		else
			kvbulk_add_key(out, &key);
	}
}

static void put_message(struct cgn_str bytes, struct cgn_buf *out)
{
	struct kvbulk_msg m;
	struct cgn_err err = {0};
	if (!cgn_ok(kvbulk_read(bytes, &m, &err))) {
		CGN_MUST(err.msg[0] != '\0');
		return;
	}
	kvbulk_write(&m, out);
	put_items(&m, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_buf once = {0}, twice = {0};
	struct cgn_str bytes = {(const char *)data, n};
	put_message(bytes, &once);
	if (once.n > 0) {
		CGN_MUST(once.n == n);
		put_message(cgn_buf_view(&once), &twice);
		CGN_MUST(cgn_str_eq(cgn_buf_view(&once), cgn_buf_view(&twice)));
	}
	cgn_buf_fini(&once);
	cgn_buf_fini(&twice);
	return 0;
}
