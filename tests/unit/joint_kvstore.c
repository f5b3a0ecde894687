/* SPDX-License-Identifier: Apache-2.0 */
#include "kvstore_world.h"

#include "base/sum/sum.h"

#include <xxhash.h>

static void test_what_is_put_is_got(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(8 * MIB);
	struct iovec iov[4];
	size_t n = 0;
	kvw_put(s, 1, 7, 1000);
	struct block_key k = kvw_key(1), other = kvw_key(2);
	struct kvstore_block *b = kvstore_get_ram(s, &k, true);
	assert_non_null(b);
	assert_int_equal(kvstore_block_iov(b, 1, 3, iov, 4, &n), 3);
	assert_int_equal(n, 1);
	assert_int_equal(((char *)iov[0].iov_base)[0], kvw_byte(1, 7, 1));
	assert_int_equal(kvstore_block_iov(b, 1000, 3, iov, 4, &n), 0);
	assert_int_equal(n, 0);
	assert_true(cgn_str_is(kvstore_block_model(b), "m"));
	assert_int_equal(kvstore_block_name(b).n, 0);
	assert_int_equal(kvstore_block_info(b).tokens, 7);
	assert_int_equal(kvstore_block_info(b).tiers, BLOCK_TIER_BIT(BLOCK_RAM));
	assert_null(kvstore_get_ram(s, &other, true));
	other = k;
	other.segment++;
	assert_null(kvstore_get_ram(s, &other, true));
	assert_true(kvstore_remove(s, &k));
	assert_false(kvstore_remove(s, &k));
	assert_true(kvw_is(b, 1, 7)); /* The value is readable while the block is held. */
	assert_int_equal(kvstore_block_info(b).tiers, 0);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].bytes, 65536);
	kvstore_block_unref(&b);
	struct kvstore_stats st = kvw_stats(s);
	assert_int_equal(st.tier[BLOCK_RAM].bytes, 0);
	assert_int_equal(st.tier[BLOCK_RAM].hits, 1);
	assert_int_equal(st.misses, 2);
	kvstore_free(&s);
	assert_null(s);
}

static void check_size(struct kvstore *s, uint64_t size)
{
	struct block_key k = kvw_key(size);
	kvw_put(s, size, 1, size);
	struct kvstore_block *b = kvstore_get_ram(s, &k, true);
	assert_non_null(b);
	assert_int_equal(kvstore_block_size(b), size);
	assert_true(kvw_is(b, size, 1));
	kvstore_block_unref(&b);
}

static void test_every_size(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(16 * MIB);
	const uint64_t edges[] = {1024, 1344, 2048, 2688, 4096, 5440, 6528, 8192, 9344, 10880, 13056, 16384,
		21824, 32768, 65536, 98304, 131072, MIB, 3 * MIB};
	check_size(s, 0);
	check_size(s, 1);
	for (size_t i = 0; i < CGN_COUNT(edges); i++)
		for (uint64_t d = 0; d < 3; d++)
			check_size(s, edges[i] + d - 1);
	struct kvstore_stats st = kvw_stats(s);
	assert_true(st.tier[BLOCK_RAM].bytes <= 16 * MIB &&
		st.tier[BLOCK_RAM].value_bytes <= st.tier[BLOCK_RAM].bytes);
	kvstore_free(&s);
}

static void test_64_mib(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(130 * MIB);
	const struct block_meta meta = {0};
	struct kvstore_writer *w = NULL;
	struct cgn_err err = {0};
	struct block_key k = kvw_key(9);
	check_size(s, BLOCK_MAX_BYTES);
	assert_int_equal(kvstore_put(s, &k, &meta, BLOCK_MAX_BYTES + 1, &w, &err).code, CGN_TOO_LARGE);
	kvw_put(s, 1, 1, BLOCK_MAX_BYTES);
	kvw_put(s, 2, 1, BLOCK_MAX_BYTES); /* The third does not fit beside them. */
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].blocks, 2);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].evictions, 1);
	kvstore_free(&s);
}

static void test_a_value_in_pieces(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(4 * MIB);
	struct kvstore_extent ext[KVSTORE_MAX_EXTENTS];
	uint64_t bytes = 0;
	for (uint64_t n = 0; n < 64; n++)
		kvw_put(s, n, 0, 65536);
	for (uint64_t n = 0; n < 64; n += 2) {
		struct block_key gone = kvw_key(n);
		assert_true(kvstore_remove(s, &gone));
	}
	kvw_put(s, 100, 1, MIB + 5000); /* Every other page. */
	struct block_key k = kvw_key(100);
	struct kvstore_block *b = kvstore_get_ram(s, &k, true);
	assert_non_null(b);
	assert_true(kvw_is(b, 100, 1));
	size_t n_ext = kvstore_block_extents(b, ext, CGN_COUNT(ext));
	uint64_t sum = 0;
	assert_int_equal(n_ext, 17);
	assert_int_equal(kvstore_block_extents(b, ext, 1), 17);
	assert_true(kvstore_arena(s, &bytes) >= 0);
	for (size_t i = 0; i < n_ext; i++) {
		assert_true(ext[i].offset + ext[i].length <= bytes);
		sum += ext[i].length;
	}
	assert_int_equal(sum, MIB + 5000);
	uint64_t index = kvw_stats(s).index_bytes;
	assert_true(kvstore_remove(s, &k));
	assert_int_equal(kvw_stats(s).index_bytes, index); /* The name is still held. */
	kvstore_block_unref(&b);
	assert_true(kvw_stats(s).index_bytes < index);
	kvstore_free(&s);
}

static void test_names_and_models(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(8 * MIB);
	char model[BLOCK_MAX_MODEL + 1], name[BLOCK_MAX_NAME + 1];
	memset(model, 'm', sizeof model);
	memset(name, 'n', sizeof name);
	struct block_meta meta = {.model = {model, BLOCK_MAX_MODEL}, .name = {name, BLOCK_MAX_NAME}};
	assert_true(cgn_ok(kvw_try_put(s, 1, 1, 100, &meta)));
	assert_true(cgn_ok(kvw_try_put(s, 2, 1, 100, &meta)));
	uint64_t with_two = kvw_stats(s).index_bytes;
	struct block_key k1 = kvw_key(1), k2 = kvw_key(2);
	assert_true(kvstore_remove(s, &k1));
	/* Both blocks share one copy of the model's name, which is still held. */
	assert_int_equal(with_two - kvw_stats(s).index_bytes, BLOCK_MAX_NAME);
	struct kvstore_block *b = kvstore_get_ram(s, &k2, true);
	assert_true(cgn_str_eq(kvstore_block_model(b), meta.model));
	assert_true(cgn_str_eq(kvstore_block_name(b), meta.name));
	assert_true(kvstore_remove(s, &k2));
	assert_true(cgn_str_eq(kvstore_block_model(b), meta.model));
	kvstore_block_unref(&b);
	meta.model.n++;
	assert_int_equal(kvw_try_put(s, 3, 1, 100, &meta).code, CGN_INVALID);
	meta.model.n = 0;
	meta.tenant = (struct cgn_str){name, BLOCK_MAX_TENANT + 1};
	assert_int_equal(kvw_try_put(s, 3, 1, 100, &meta).code, CGN_INVALID);
	meta.tenant.n = 0;
	meta.name.n++;
	assert_int_equal(kvw_try_put(s, 3, 1, 100, &meta).code, CGN_INVALID);
	kvstore_free(&s);
}

static void test_too_many_models(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(128 * MIB);
	char name[16];
	for (unsigned i = 0; i < 65535; i++) {
		struct block_meta meta = {
			.model = {name, (size_t)snprintf(name, sizeof name, "model-%u", i)}};
		assert_true(cgn_ok(kvw_try_put(s, i, 1, 1, &meta)));
	}
	struct block_meta one_more = {.model = CGN_STR("straw")}, known = {.model = CGN_STR("model-77")};
	assert_int_equal(kvw_try_put(s, 70000, 1, 1, &one_more).code, CGN_OVERLOADED);
	/* A pair for which there is no room loses its tenant, and then stays at its site. */
	struct block_meta pair = {.model = CGN_STR("model-78"), .tenant = CGN_STR("acme")};
	struct block_key pair_key = kvw_key(70001);
	assert_true(cgn_ok(kvw_try_put(s, 70001, 1, 1, &pair)));
	struct kvstore_block *b = kvstore_get_ram(s, &pair_key, true);
	assert_true(cgn_str_is(kvstore_block_model(b), "model-78") && kvstore_block_tenant(b).n == 0);
	assert_false(kvstore_block_info(b).leave.owned);
	kvstore_block_unref(&b);
	assert_true(cgn_ok(kvw_try_put(s, 70001, 1, 1, &known)));
	struct block_key k = kvw_key(5);
	assert_true(kvstore_remove(s, &k));
	assert_true(cgn_ok(kvw_try_put(s, 70000, 1, 1, &one_more)));
	kvstore_free(&s);
}

static void test_only_if_absent_and_checksums(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(8 * MIB);
	const struct block_meta meta = {0};
	struct block_key k = kvw_key(1);
	struct kvstore_writer *w = NULL;
	struct cgn_err err = {0};
	uint64_t sum = XXH3_64bits("hello", 5), wrong = sum + 1;
	assert_true(cgn_ok(kvstore_put(s, &k, &meta, 5, &w, &err)));
	kvstore_writer_add(w, "hel", 3);
	kvstore_writer_add(w, "", 0);
	assert_int_equal(kvstore_writer_missing(w), 2);
	kvstore_writer_add(w, "lo", 2);
	assert_int_equal(kvstore_writer_commit(&w, &wrong, 0, &err).code, CGN_INVALID);
	assert_null(w);
	assert_false(kvw_has(s, 1));
	assert_true(cgn_ok(kvstore_put(s, &k, &meta, 5, &w, &err)));
	kvstore_writer_add(w, "hello", 5);
	assert_true(cgn_ok(kvstore_writer_commit(&w, &sum, KVSTORE_IF_ABSENT, &err)));
	struct kvstore_block *b = kvstore_get_ram(s, &k, true);
	assert_int_equal(kvstore_block_checksum(b), sum);
	kvstore_block_unref(&b);
	assert_true(cgn_ok(kvstore_put(s, &k, &meta, 1, &w, &err)));
	kvstore_writer_add(w, "x", 1);
	assert_int_equal(kvstore_writer_commit(&w, NULL, KVSTORE_IF_ABSENT, &err).code, CGN_CONFLICT);
	assert_true(cgn_ok(kvstore_put(s, &k, &meta, 1, &w, &err)));
	kvstore_writer_abort(&w);
	kvstore_writer_abort(&w);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].value_bytes, 5);
	assert_true(kvstore_expire(s, &k, KVSTORE_ANY_EXPIRY, kvw_wall)); /* An expired block is absent. */
	assert_true(cgn_ok(kvstore_put(s, &k, &meta, 1, &w, &err)));
	kvstore_writer_add(w, "x", 1);
	assert_true(cgn_ok(kvstore_writer_commit(&w, NULL, KVSTORE_IF_ABSENT, &err)));
	kvstore_free(&s);
}

static cgn_rc put_as(struct kvstore *s, const struct block_key *k, const char *value, uint64_t ends,
	unsigned how)
{
	struct block_meta meta = {.expires_unix_ms = 1};
	struct kvstore_writer *w = NULL;
	struct cgn_err err;
	assert_true(cgn_ok(kvstore_put(s, k, &meta, strlen(value), &w, &err)));
	kvstore_writer_add(w, value, strlen(value));
	kvstore_writer_expires(w, ends);
	cgn_rc rc = kvstore_writer_commit(&w, NULL, how, &err);
	assert_null(w);
	return rc;
}

static uint64_t end_of(struct kvstore *s, const struct block_key *k)
{
	struct block_info info;
	assert_true(kvstore_lookup(s, k, &info));
	return info.expires_unix_ms;
}

/* The condition of a commit and the block's expiry are decided in the step in which the value arrives. */
static void test_commits_have_their_conditions_and_ends(void **state)
{
	struct kvstore *s = kvw_store(MIB);
	struct block_key k = kvw_key(1);
	(void)state;
	assert_int_equal(put_as(s, &k, "a", 0, KVSTORE_IF_HELD).code, CGN_NOT_FOUND);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].blocks, 0);
	assert_int_equal(put_as(s, &k, "a", kvw_wall + 5000, KVSTORE_IF_ABSENT).code, CGN_FINE);
	assert_int_equal(end_of(s, &k), kvw_wall + 5000);
	assert_int_equal(put_as(s, &k, "b", 0, KVSTORE_IF_HELD | KVSTORE_KEEP_EXPIRY).code, CGN_FINE);
	assert_int_equal(end_of(s, &k), kvw_wall + 5000);
	assert_int_equal(put_as(s, &k, "c", 0, 0).code, CGN_FINE);
	assert_int_equal(end_of(s, &k), 0);
	assert_int_equal(put_as(s, &k, "d", kvw_wall + 10, KVSTORE_KEEP_EXPIRY).code, CGN_FINE);
	assert_int_equal(end_of(s, &k), 0); /* The replaced value had no expiry. */
	assert_int_equal(put_as(s, &k, "e", kvw_wall + 10, 0).code, CGN_FINE);
	kvw_wall += 10;
	/* An expired block is not held. */
	assert_int_equal(put_as(s, &k, "f", 0, KVSTORE_IF_HELD).code, CGN_NOT_FOUND);
	assert_int_equal(put_as(s, &k, "g", kvw_wall + 20, KVSTORE_KEEP_EXPIRY).code, CGN_FINE);
	assert_int_equal(end_of(s, &k), kvw_wall + 20);
	kvw_wall += 20;
	kvstore_tick(s);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].blocks, 0);
	kvstore_free(&s);
}

static cgn_rc exchange_as(struct kvstore *s, const struct block_key *k, const char *value, unsigned how,
	char old[2])
{
	struct block_meta meta = {.created_unix_ms = 1};
	struct kvstore_block *b = NULL;
	struct iovec iov;
	size_t n = 0;
	struct cgn_err err = {0};
	cgn_rc rc = kvstore_exchange(s, k, &meta, value, strlen(value), how, &b, &err);
	old[0] = old[1] = '\0';
	if (b != NULL && kvstore_block_iov(b, 0, 1, &iov, 1, &n) == 1)
		old[0] = *(const char *)iov.iov_base;
	kvstore_block_unref(&b);
	return rc;
}

static void test_an_exchange_returns_what_was_there(void **state)
{
	struct kvstore *s = kvw_store(MIB);
	struct block_key k = kvw_key(1);
	struct kvstore_block *b = NULL;
	struct cgn_err err;
	char old[2];
	(void)state;
	assert_int_equal(exchange_as(s, &k, "a", KVSTORE_IF_HELD, old).code, CGN_NOT_FOUND);
	assert_string_equal(old, "");
	assert_int_equal(exchange_as(s, &k, "a", KVSTORE_IF_ABSENT, old).code, CGN_FINE);
	assert_string_equal(old, "");
	assert_int_equal(exchange_as(s, &k, "b", KVSTORE_IF_ABSENT, old).code, CGN_CONFLICT);
	assert_string_equal(old, "a");
	assert_int_equal(exchange_as(s, &k, "c", KVSTORE_IF_HELD, old).code, CGN_FINE);
	assert_string_equal(old, "a");
	assert_int_equal(kvstore_take(s, &k, &b, &err).code, CGN_FINE);
	assert_int_equal(kvstore_block_size(b), 1);
	kvstore_block_unref(&b);
	assert_int_equal(kvstore_take(s, &k, &b, &err).code, CGN_NOT_FOUND);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].blocks, 0);
	kvstore_free(&s);
}

static cgn_rc put_all(struct kvstore *s, uint64_t first, size_t n, uint64_t version, unsigned how)
{
	struct kvstore_writer *w[100] = {0};
	struct block_meta meta = {.tokens = (uint32_t)version};
	struct cgn_err err;
	for (size_t i = 0; i < n; i++) {
		struct block_key k = kvw_key(first + i % (n - 1)); /* The last value is of the first key. */
		assert_true(cgn_ok(kvstore_put(s, &k, &meta, 10, &w[i], &err)));
		kvw_fill(w[i], first + i % (n - 1), i == n - 1 ? version + 1 : version);
	}
	cgn_rc rc = kvstore_commit_all(w, n, how, &err);
	for (size_t i = 0; i < n; i++) {
		assert_true(cgn_ok(rc) == (w[i] == NULL));
		kvstore_writer_abort(&w[i]);
	}
	return rc;
}

static void test_all_values_of_a_commit_or_none(void **state)
{
	struct kvstore *s = kvw_store(MIB);
	struct cgn_err err;
	(void)state;
	assert_int_equal(kvstore_commit_all(NULL, 0, 0, &err).code, CGN_FINE);
	kvw_put(s, 50, 1, 10);
	assert_int_equal(put_all(s, 1, 100, 1, KVSTORE_IF_ABSENT).code, CGN_CONFLICT);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].blocks, 1);
	assert_int_equal(put_all(s, 100, 30, 1, KVSTORE_IF_ABSENT).code, CGN_FINE);
	assert_int_equal(put_all(s, 1, 100, 3, 0).code, CGN_FINE);
	for (uint64_t n = 1; n < 100; n++) {
		struct block_key k = kvw_key(n);
		struct kvstore_block *b = kvstore_get_ram(s, &k, true);
		assert_true(kvw_is(b, n, n == 1 ? 4 : 3));
		kvstore_block_unref(&b);
	}
	kvstore_free(&s);
}

static uint64_t place_of(struct kvstore *s, const struct block_key *k, const char *value)
{
	struct kvstore_block *b = kvstore_get_ram(s, k, true);
	struct kvstore_extent at = {0};
	assert_non_null(b);
	assert_int_equal(kvstore_block_size(b), strlen(value));
	assert_int_equal(kvstore_block_extents(b, &at, 1), 1);
	struct iovec iov;
	size_t n = 0;
	(void)kvstore_block_iov(b, 0, UINT64_MAX, &iov, 1, &n);
	assert_memory_equal(iov.iov_base, value, strlen(value));
	kvstore_block_unref(&b);
	return at.offset;
}

static void store_set(struct kvstore *s, const struct block_key *k, const struct block_meta *meta,
	const char *value)
{
	struct cgn_err err;
	assert_true(cgn_ok(kvstore_set(s, k, meta, value, strlen(value), 0, &err)));
}

/* A small value takes the place of one of equal size, unless a reader holds the old value, or more than its
 * bytes would change. */
static void test_small_values_take_each_others_place(void **state)
{
	struct kvstore *s = kvw_store(MIB);
	struct block_key k = kvw_key(1);
	struct block_meta named = {.name = CGN_STR("one")}, plain = {0},
			  ends = {.name = CGN_STR("one"), .expires_unix_ms = kvw_wall + 10};
	struct cgn_err err;
	(void)state;
	store_set(s, &k, &named, "first");
	uint64_t at = place_of(s, &k, "first"), changes = kvstore_changes_end(s);
	store_set(s, &k, &ends, "second value");
	assert_int_equal(place_of(s, &k, "second value"), at);
	assert_int_equal(kvstore_changes_end(s), changes + 1);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].value_bytes, strlen("second value"));
	assert_int_equal(end_of(s, &k), kvw_wall + 10);
	assert_true(
		cgn_ok(kvstore_set(s, &k, &named, "third", 5, KVSTORE_IF_HELD | KVSTORE_KEEP_EXPIRY, &err)));
	assert_int_equal(end_of(s, &k), kvw_wall + 10);
	assert_int_equal(kvstore_set(s, &k, &named, "no", 2, KVSTORE_IF_ABSENT, &err).code, CGN_CONFLICT);
	struct kvstore_block *held = kvstore_get_ram(s, &k, true);
	store_set(s, &k, &named, "while it is read");
	assert_int_equal(kvstore_block_size(held), 5);
	assert_int_equal(kvstore_block_checksum(held), sum64("third", 5));
	kvstore_block_unref(&held);
	at = place_of(s, &k, "while it is read");
	assert_true(cgn_ok(kvstore_pin(s, &k, UINT64_MAX, &err)));
	store_set(s, &k, &named, "not pinned");
	assert_int_equal(kvw_stats(s).pinned_bytes, 0);
	store_set(s, &k, &plain, "without a name");
	(void)place_of(s, &k, "without a name");
	char large[KVSTORE_SMALL + 2];
	memset(large, 'l', sizeof large - 1);
	large[sizeof large - 1] = '\0';
	store_set(s, &k, &plain, large);
	(void)place_of(s, &k, large);
	assert_true(cgn_ok(kvstore_set(s, &k, &plain, NULL, 0, 0, &err)));
	store_set(s, &k, &ends, "e");
	kvw_wall += 10;
	assert_int_equal(kvstore_set(s, &k, &named, "late", 4, KVSTORE_IF_HELD, &err).code, CGN_NOT_FOUND);
	kvstore_tick(s);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].blocks, 0);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].value_bytes, 0);
	kvstore_free(&s);
}

static void flip_a_byte(struct kvstore *s, uint64_t n, uint64_t at)
{
	struct block_key k = kvw_key(n);
	struct kvstore_block *b = kvstore_get_ram(s, &k, false);
	struct iovec iov;
	size_t n_iov = 0;
	assert_non_null(b);
	assert_int_equal(kvstore_block_iov(b, at, 1, &iov, 1, &n_iov), 1);
	*(char *)iov.iov_base ^= 1;
	kvstore_block_unref(&b);
}

static void test_a_flipped_bit_is_a_miss(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(8 * MIB);
	const uint64_t sizes[] = {1, 5000, 65536, MIB + 3};
	for (size_t i = 0; i < CGN_COUNT(sizes); i++) {
		struct block_key k = kvw_key(i);
		kvw_put(s, i, 1, sizes[i]);
		flip_a_byte(s, i, sizes[i] - 1);
		assert_null(kvstore_get_ram(s, &k, true));
		assert_false(kvw_has(s, i));
		assert_int_equal(kvw_stats(s).corrupt, i + 1);
	}
	struct kvstore_stats st = kvw_stats(s);
	assert_int_equal(st.tier[BLOCK_RAM].bytes, 0);
	assert_int_equal(st.tier[BLOCK_RAM].hits, 4); /* Hits whose value did not verify. */
	assert_int_equal(st.misses, 4);
	kvstore_free(&s);
}

/* ---- time ---- */
static void test_expiry_follows_the_wall_clock(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(8 * MIB);
	const struct block_meta meta = {.created_unix_ms = 5, .expires_unix_ms = kvw_wall + 1000};
	struct block_info info;
	struct block_key k = kvw_key(1);
	assert_true(cgn_ok(kvw_try_put(s, 1, 1, 100, &meta)));
	assert_true(kvstore_lookup(s, &k, &info));
	assert_int_equal(info.created_unix_ms, 5);
	assert_int_equal(info.expires_unix_ms, kvw_wall + 1000);
	kvw_wall -= 900000; /* The clock goes backwards: the block lives until its time. */
	assert_true(kvw_has(s, 1));
	kvw_wall += 900999;
	assert_true(kvw_has(s, 1));
	struct kvstore_block *held = kvstore_get_ram(s, &k, true);
	kvw_wall += 1;
	assert_false(kvw_has(s, 1));
	assert_true(kvw_is(held, 1, 1));
	kvstore_block_unref(&held);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].bytes, 0);
	assert_false(kvstore_expire(s, &k, KVSTORE_ANY_EXPIRY, 0));
	assert_int_equal(kvstore_pin(s, &k, UINT64_MAX, &(struct cgn_err){0}).code, CGN_NOT_FOUND);
	kvw_put(s, 1, 2, 100);
	assert_true(kvstore_expire(s, &k, KVSTORE_ANY_EXPIRY, kvw_wall + 5));
	assert_false(kvstore_expire(s, &k, kvw_wall + 6, 1));
	assert_true(kvstore_expire(s, &k, kvw_wall + 5, kvw_wall + 7));
	assert_true(kvstore_expire(s, &k, KVSTORE_ANY_EXPIRY, 0)); /* The value has no expiry any more. */
	kvw_wall += (uint64_t)10 * 365 * 86400 * 1000;
	assert_true(kvw_has(s, 1));
	kvstore_free(&s);
}

static void test_ticks_sweep_what_expired(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(32 * MIB);
	for (uint64_t n = 0; n < 20000; n++) {
		const struct block_meta meta = {.expires_unix_ms = n % 2 == 0 ? kvw_wall + 10 : 0};
		assert_true(cgn_ok(kvw_try_put(s, n, 1, 10, &meta)));
	}
	kvstore_tick(s);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].blocks, 20000);
	kvw_wall += (uint64_t)1 << 40; /* A jump of decades. */
	for (int i = 0; i < 4; i++)
		kvstore_tick(s);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].blocks, 10000);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].value_bytes, 100000);
	assert_true(kvw_has(s, 1) && !kvw_has(s, 2));
	kvstore_free(&s);
}

/* ---- pins ---- */
/* A tick expires a bounded number of blocks, however many are due. */
static void test_a_tick_takes_a_bounded_time(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(384 * MIB);
	const struct block_meta meta = {.expires_unix_ms = 2000000};
	const uint64_t all = 300000;
	for (uint64_t n = 0; n < all; n++)
		assert_true(cgn_ok(kvw_try_put(s, n, 1, 0, &meta)));
	kvw_wall = 3000000;
	kvstore_tick(s);
	uint64_t left = kvw_stats(s).tier[BLOCK_RAM].blocks;
	assert_true(left > 0 && left < all - 200000);
	for (unsigned i = 0; i < 20; i++)
		kvstore_tick(s);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].blocks, 0);
	kvstore_free(&s);
}

static void test_pinned_blocks_stay(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(4 * MIB);
	struct cgn_err err = {0};
	struct block_key a = kvw_key(1000), b = kvw_key(1001), c = kvw_key(1002);
	for (uint64_t n = 1000; n < 1003; n++)
		kvw_put(s, n, 1, MIB);
	assert_true(cgn_ok(kvstore_pin(s, &a, UINT64_MAX, &err)));
	assert_true(cgn_ok(kvstore_pin(s, &b, kvw_wall + 500, &err)));
	assert_true(cgn_ok(kvstore_pin(s, &b, kvw_wall + 1000, &err))); /* A longer pin, not a second one. */
	assert_int_equal(kvw_stats(s).pinned_bytes, 2 * MIB);
	assert_int_equal(kvstore_pin(s, &c, UINT64_MAX, &err).code, CGN_OVERLOADED);
	assert_non_null(strstr(err.msg, "half of the tier"));
	for (uint64_t n = 0; n < 100; n++)
		kvw_put(s, n, 1, 200000);
	assert_true(kvw_has(s, 1000) && kvw_has(s, 1001) && !kvw_has(s, 1002));
	kvw_wall += 1000;
	struct block_info info;
	assert_true(kvstore_lookup(s, &b, &info) && !info.pinned);
	kvstore_tick(s);
	assert_int_equal(kvw_stats(s).pinned_bytes, MIB);
	for (uint64_t n = 0; n < 100; n++)
		kvw_put(s, n, 2, 200000);
	assert_true(kvw_has(s, 1000) && !kvw_has(s, 1001));
	assert_true(cgn_ok(kvstore_pin(s, &a, 0, &err)));
	assert_true(cgn_ok(kvstore_pin(s, &a, 0, &err)));
	assert_int_equal(kvw_stats(s).pinned_bytes, 0);
	assert_true(cgn_ok(kvstore_pin(s, &a, UINT64_MAX, &err)));
	kvw_put(s, 1000, 5, 10); /* Another value: not pinned. */
	assert_int_equal(kvw_stats(s).pinned_bytes, 0);
	kvstore_free(&s);
}

static void test_room_is_made_of_pins_that_are_over(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(2 * MIB);
	struct cgn_err err = {0};
	struct block_key a = kvw_key(1), b = kvw_key(2);
	const struct block_meta meta = {0};
	kvw_put(s, 1, 1, MIB);
	kvw_put(s, 2, 1, MIB);
	assert_true(cgn_ok(kvstore_pin(s, &a, kvw_wall + 10, &err)));
	struct kvstore_block *held = kvstore_get_ram(s, &b, true);
	assert_int_equal(kvw_try_put(s, 3, 1, 1, &meta).code, CGN_OVERLOADED);
	kvw_wall += 10;
	assert_true(cgn_ok(kvw_try_put(s, 3, 1, 1, &meta)));
	assert_false(kvw_has(s, 1));
	kvstore_block_unref(&held);
	kvstore_free(&s);
}

/* ---- room ---- */
static void test_what_is_held_counts_and_stays(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(4 * MIB);
	struct kvstore_block *held[64];
	const struct block_meta meta = {0};
	for (uint64_t n = 0; n < 64; n++) {
		struct block_key k = kvw_key(n);
		kvw_put(s, n, 1, 65536);
		held[n] = kvstore_get_ram(s, &k, true);
		assert_non_null(held[n]);
	}
	assert_int_equal(kvw_try_put(s, 100, 1, 1, &meta).code, CGN_OVERLOADED);
	struct block_key k = kvw_key(3);
	assert_true(kvstore_remove(s, &k)); /* Removing this one frees no room either: a reader holds it. */
	assert_int_equal(kvw_try_put(s, 100, 1, 1, &meta).code, CGN_OVERLOADED);
	assert_int_equal(kvw_stats(s).tier[BLOCK_RAM].bytes, 4 * MIB);
	kvstore_block_unref(&held[3]);
	assert_true(cgn_ok(kvw_try_put(s, 100, 1, 65536, &meta)));
	for (uint64_t n = 0; n < 64; n++)
		if (n != 3)
			assert_true(kvw_is(held[n], n, 1) && kvw_has(s, n));
	for (uint64_t n = 0; n < 64; n++)
		kvstore_block_unref(&held[n]);
	assert_true(cgn_ok(kvw_try_put(s, 101, 1, 2 * MIB, &meta)));
	kvstore_free(&s);
}

static void test_used_blocks_outlive_a_scan(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(16 * MIB);
	for (uint64_t n = 0; n < 100; n++)
		kvw_put(s, n, 1, 65536);
	for (uint64_t n = 0; n < 2000; n++) {
		struct block_key k = kvw_key(n % 100);
		struct kvstore_block *b = kvstore_get_ram(s, &k, false);
		kvstore_block_unref(&b);
		kvw_put(s, 1000 + n, 1, 65536); /* Each only once. */
	}
	for (uint64_t n = 0; n < 100; n++)
		assert_true(kvw_has(s, n));
	kvstore_free(&s);
}

/* ---- scans and changes ---- */
struct seen {
	struct kvstore *store;
	unsigned char *times;
	uint64_t n, next;
	bool meddle; /* The callback puts and removes blocks during the scan. */
};

static void on_key(void *user, const struct block_key *k, const struct block_info *info, struct cgn_str name)
{
	struct seen *seen = user;
	uint64_t n = 0;
	(void)k;
	assert_int_equal(info->tiers, BLOCK_TIER_BIT(BLOCK_RAM));
	assert_int_equal(name.n, sizeof n);
	memcpy(&n, name.p, sizeof n);
	if (n < seen->n)
		seen->times[n]++;
	if (!seen->meddle)
		return;
	for (int i = 0; i < 3; i++, seen->next++) {
		struct block_meta meta = {.name = {(const char *)&seen->next, sizeof seen->next}};
		assert_true(cgn_ok(kvw_try_put(seen->store, seen->next, 1, 1, &meta)));
	}
	struct block_key again = kvw_key(n), gone = kvw_key(seen->next - 5);
	struct block_meta meta = {.name = {(const char *)&n, sizeof n}};
	if (n < seen->n) /* The value is replaced during the scan; its key is there all the time. */
		assert_true(cgn_ok(kvw_try_put(seen->store, n, 2, 2, &meta)));
	(void)again;
	(void)kvstore_remove(seen->store, &gone);
}

static void scan_of(uint64_t n, bool meddle)
{
	struct kvstore *s = kvw_store(256 * MIB);
	struct seen seen = {.store = s, .times = calloc(n, 1), .n = n, .next = n + 10, .meddle = meddle};
	for (uint64_t i = 0; i < n; i++) {
		struct block_meta meta = {.name = {(const char *)&i, sizeof i}};
		assert_true(cgn_ok(kvw_try_put(s, i, 1, 1, &meta)));
	}
	uint64_t cursor = 0;
	do {
		kvstore_scan(s, &cursor, 10, on_key, &seen);
		if (meddle && seen.next > 20 * n)
			seen.meddle = false;
	} while (cursor != 0);
	for (uint64_t i = 0; i < n; i++)
		assert_int_equal(seen.times[i], 1);
	free(seen.times);
	kvstore_free(&s);
}

static void test_a_scan_tells_each_key(void **state)
{
	(void)state;
	scan_of(1, false);
	scan_of(5000, false);
}

/* An index that was emptied is still as large: one step scans a part of it. */
static void test_a_scan_of_an_emptied_index_is_cut(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(256 * MIB);
	struct seen seen = {.store = s, .times = calloc(1, 1), .n = 1};
	for (uint64_t i = 0; i < 100000; i++)
		kvw_put(s, i, 1, 1);
	for (uint64_t i = 0; i < 100000; i++) {
		struct block_key k = kvw_key(i);
		assert_true(kvstore_remove(s, &k));
	}
	uint64_t cursor = 0, steps = 0, zero = 0;
	struct block_meta meta = {.name = {(const char *)&zero, sizeof zero}};
	assert_true(cgn_ok(kvw_try_put(s, 0, 1, 1, &meta)));
	do {
		kvstore_scan(s, &cursor, 10, on_key, &seen);
		steps++;
	} while (cursor != 0);
	assert_int_equal(seen.times[0], 1);
	assert_in_range(steps, 100000 / 2 / 1100, 100000 / 500);
	free(seen.times);
	kvstore_free(&s);
}

static void test_a_scan_while_the_index_grows(void **state)
{
	(void)state;
	scan_of(3000, true);
}

static void test_changes_are_told_in_order(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(8 * MIB);
	struct block_change got[8];
	uint64_t at = kvstore_changes_end(s);
	size_t n = 0;
	struct block_key k = kvw_key(1);
	kvw_put(s, 1, 1, 10);
	kvw_put(s, 1, 2, 20);
	assert_true(kvstore_remove(s, &k));
	assert_true(kvstore_changes(s, &at, got, 8, &n));
	assert_int_equal(n, 4);
	assert_int_equal(got[0].tiers, BLOCK_TIER_BIT(BLOCK_RAM));
	assert_int_equal(got[1].tiers, 0);
	assert_int_equal(got[2].size, 20);
	assert_int_equal(got[3].tiers, 0);
	assert_memory_equal(&got[3].key, &k, sizeof k);
	for (uint64_t i = 0; i < 65540; i++)
		kvw_put(s, i, 1, 1);
	assert_false(kvstore_changes(s, &at, got, 8, &n));
	at = kvstore_changes_end(s) + 1; /* A number that was never given. */
	assert_false(kvstore_changes(s, &at, got, 8, &n));
	kvstore_free(&s);
}

/* ---- reads on a loop ---- */
struct asked {
	struct cgn_loop *loop;
	unsigned answers;
	bool hit;
	enum cgn_code why;
};

static void on_read(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct asked *a = user;
	a->answers++;
	a->hit = *take != NULL;
	a->why = why->code;
	kvstore_block_unref(take);
	cgn_loop_stop(a->loop);
}

static void test_reads_come_on_the_loop(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(8 * MIB);
	struct cgn_err err = {0};
	struct asked a = {0}, cancelled = {0};
	struct block_key k = kvw_key(1);
	kvw_put(s, 1, 1, 70000);
	for (int round = 0; round < 2; round++) {
		assert_true(cgn_ok(cgn_loop_new(&a.loop, &err)));
		cancelled.loop = a.loop;
		struct kvstore_read *c = kvstore_get(s, a.loop, &k, on_read, &cancelled);
		assert_non_null(kvstore_get(s, a.loop, &k, on_read, &a));
		assert_int_equal(a.answers, round); /* Never inside the call. */
		kvstore_read_cancel(&c);
		assert_null(c);
		cgn_loop_run(a.loop);
		cgn_loop_free(&a.loop);
		assert_int_equal(a.hit, round == 0);
		assert_int_equal(a.why, round == 0 ? CGN_FINE : CGN_NOT_FOUND);
		(void)kvstore_remove(s, &k);
	}
	assert_int_equal(a.answers, 2);
	assert_int_equal(cancelled.answers, 0);
	kvstore_free(&s);
}

static void test_the_index_is_small(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(256 * MIB);
	const struct block_meta meta = {.model = CGN_STR("m")};
	for (uint64_t n = 0; n < 100000; n++) {
		struct block_key k = kvw_key(n);
		struct kvstore_writer *w = NULL;
		struct cgn_err err = {0};
		assert_true(cgn_ok(kvstore_put(s, &k, &meta, 0, &w, &err)));
		assert_true(cgn_ok(kvstore_writer_commit(&w, NULL, 0, &err)));
		if (n == 9999)
			assert_true(kvw_stats(s).index_bytes <= 128 * (n + 1));
	}
	assert_true(kvw_stats(s).index_bytes <= 128 * 100000);
	kvstore_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_put_is_got),
		cmocka_unit_test(test_every_size),
		cmocka_unit_test(test_64_mib),
		cmocka_unit_test(test_a_value_in_pieces),
		cmocka_unit_test(test_names_and_models),
		cmocka_unit_test(test_too_many_models),
		cmocka_unit_test(test_only_if_absent_and_checksums),
		cmocka_unit_test(test_commits_have_their_conditions_and_ends),
		cmocka_unit_test(test_an_exchange_returns_what_was_there),
		cmocka_unit_test(test_all_values_of_a_commit_or_none),
		cmocka_unit_test(test_small_values_take_each_others_place),
		cmocka_unit_test(test_a_flipped_bit_is_a_miss),
		cmocka_unit_test(test_expiry_follows_the_wall_clock),
		cmocka_unit_test(test_ticks_sweep_what_expired),
		cmocka_unit_test(test_a_tick_takes_a_bounded_time),
		cmocka_unit_test(test_pinned_blocks_stay),
		cmocka_unit_test(test_room_is_made_of_pins_that_are_over),
		cmocka_unit_test(test_what_is_held_counts_and_stays),
		cmocka_unit_test(test_used_blocks_outlive_a_scan),
		cmocka_unit_test(test_a_scan_tells_each_key),
		cmocka_unit_test(test_a_scan_of_an_emptied_index_is_cut),
		cmocka_unit_test(test_a_scan_while_the_index_grows),
		cmocka_unit_test(test_changes_are_told_in_order),
		cmocka_unit_test(test_reads_come_on_the_loop),
		cmocka_unit_test(test_the_index_is_small),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
