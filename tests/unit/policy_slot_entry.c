/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/kv/slots/entry.h"

static const uint64_t sums[] = {7, 8}, chain[] = {100, 101, 102};
static const struct slot_entry some = {.tokens = 60,
	.prompt = 50,
	.file_bytes = {SLOT_PIECE_BYTES, 5},
	.sums = sums,
	.chain = chain,
	.n = 3};

static void an_entry_reads_back(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	uint64_t words[16];
	struct slot_entry c;
	slot_entry_write(&some, &b);
	assert_true(cgn_ok(slot_entry_read(cgn_buf_view(&b), words, &c, NULL)));
	assert_true(c.tokens == 60 && c.prompt == 50 && c.n == 3 && slot_entry_id(&c) == 102);
	assert_true(slot_entry_bytes(&c) == SLOT_PIECE_BYTES + 5 && slot_entry_pieces(&c) == 2);
	assert_memory_equal(c.sums, sums, sizeof sums);
	assert_memory_equal(c.chain, chain, sizeof chain);
	struct slot_entry_piece first = slot_entry_piece(&c, 0), second = slot_entry_piece(&c, 1);
	assert_true(first.file == 0 && first.offset == 0 && first.bytes == SLOT_PIECE_BYTES);
	assert_true(second.file == 1 && second.offset == 0 && second.bytes == 5);
	const struct slot_entry wide = {.file_bytes = {SLOT_PIECE_BYTES + 3, SLOT_PIECE_BYTES + 1},
		.sums = sums,
		.chain = chain,
		.n = 3};
	assert_int_equal(slot_entry_pieces(&wide), 4);
	assert_true(slot_entry_piece(&wide, 1).file == 0 &&
		slot_entry_piece(&wide, 1).offset == SLOT_PIECE_BYTES &&
		slot_entry_piece(&wide, 1).bytes == 3);
	assert_true(slot_entry_piece(&wide, 3).file == 1 &&
		slot_entry_piece(&wide, 3).offset == SLOT_PIECE_BYTES &&
		slot_entry_piece(&wide, 3).bytes == 1);
	for (size_t n = 0; n < b.n; n++)
		assert_false(cgn_ok(slot_entry_read((struct cgn_str){b.p, n}, words, &c, NULL)));
}

static void assert_refused(size_t at, uint8_t byte)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	uint64_t words[16];
	struct slot_entry c;
	struct cgn_err err = {0};
	slot_entry_write(&some, &b);
	b.p[at] = (char)byte;
	assert_false(cgn_ok(slot_entry_read(cgn_buf_view(&b), words, &c, &err)));
	assert_int_equal(err.code, CGN_INVALID);
}

static void a_value_that_is_no_entry_is_refused(void **state)
{
	(void)state;
	assert_refused(0, 'x');    /* Wrong magic */
	assert_refused(12, 61);    /* More prompt tokens than tokens */
	assert_refused(22, 0xff);  /* So many bytes would need more checksums */
	assert_refused(24 + 7, 1); /* Files that are too long */
	assert_refused(32, 0);     /* No block */
	assert_refused(32, 4);     /* The value is one block too short */
	assert_refused(32 + 7, 1);
}

static void a_link_reads_back(void **state)
{
	(void)state;
	const struct slot_link l =
		{.id = 102, .blocks = 2, .tokens = 60, .prompt = 50, .chain_blocks = 3, .bytes = 1000};
	uint8_t bytes[SLOT_LINK_BYTES];
	struct slot_link back;
	slot_link_write(&l, bytes);
	struct cgn_str all = {(const char *)bytes, sizeof bytes};
	assert_true(cgn_ok(slot_link_read(all, &back, NULL)));
	assert_true(back.id == 102 && back.blocks == 2 && back.tokens == 60 && back.prompt == 50 &&
		back.chain_blocks == 3 && back.bytes == 1000);
	assert_false(cgn_ok(slot_link_read((struct cgn_str){all.p, all.n - 1}, &back, NULL)));
	bytes[4] = 4; /* More blocks than the state has */
	assert_false(cgn_ok(slot_link_read(all, &back, NULL)));
	bytes[4] = 0;
	assert_false(cgn_ok(slot_link_read(all, &back, NULL)));
	bytes[4] = 1;
	bytes[28] = 99;
	assert_false(cgn_ok(slot_link_read(all, &back, NULL)));
	bytes[28] = 50;
	assert_true(cgn_ok(slot_link_read(all, &back, NULL)));
	bytes[0] ^= 1;
	assert_false(cgn_ok(slot_link_read(all, &back, NULL)));
}

static void the_last_block_is_linked(void **state)
{
	(void)state;
	uint32_t at[SLOT_ENTRY_LINKS];
	for (size_t n = 1; n < 5000; n++) {
		size_t k = slot_entry_links(n, at);
		assert_true(k >= 1 && k <= SLOT_ENTRY_LINKS && at[k - 1] == n - 1);
		for (size_t i = 1; i < k; i++)
			assert_true(at[i] > at[i - 1]);
		assert_true(n > SLOT_ENTRY_LINKS || k == n);
		assert_true(at[0] <= (n + SLOT_ENTRY_LINKS - 1) / SLOT_ENTRY_LINKS);
	}
}

static void keys_are_of_a_block_and_a_fingerprint(void **state)
{
	(void)state;
	struct slot_keys k, other;
	struct digest one = digest_of(CGN_STR("one")), two = digest_of(CGN_STR("two"));
	uint64_t block = 0;
	slot_keys_make(&one, &k);
	slot_keys_make(&two, &other);
	struct digest key = slot_key(k.entry, 0x1122334455667788);
	assert_true(digest_short(&key) == 0x1122334455667788);
	assert_true(slot_key_is(&key, k.entry, &block) && block == 0x1122334455667788);
	assert_false(slot_key_is(&key, k.link, &block));
	assert_false(slot_key_is(&key, other.entry, &block));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_entry_reads_back),
		cmocka_unit_test(a_value_that_is_no_entry_is_refused),
		cmocka_unit_test(a_link_reads_back),
		cmocka_unit_test(the_last_block_is_linked),
		cmocka_unit_test(keys_are_of_a_block_and_a_fingerprint),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
