/* SPDX-License-Identifier: Apache-2.0 */
/* The store with an SSD tier behind it. */
#include "joint/kv/kvstore/ssd_priv.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log/log.h"
#include "base/mix/mix.h"
#include "disk_folder.h"
#include "eviction_stop.h"
#include "joint/kv/kvdisk/kvdisk_priv.h"
#include "loop_until.h"
#include "telemetry_world.h"

#define MIB ((uint64_t)1 << 20)

struct answer;
struct world {
	struct answer *waiting;
	size_t n_waiting;
	char root[64], dir[80];
	struct kvstore_ssd_cfg ssd;
	struct kvstore_cfg cfg;
	struct kvstore *s;
	struct cgn_loop *l;
};

static void world_open(struct world *w)
{
	struct cgn_err err = {0};
	if (!cgn_ok(kvstore_new(&w->cfg, &w->s, &err)))
		fail_msg("%s", err.msg);
}

static void world_begin(struct world *w, uint64_t ram, bool all)
{
	*w = (struct world){.ssd = {.bytes = 128 * MIB,
				    .admission = all ? KVSTORE_WRITE_ALL : KVSTORE_WRITE_REUSED,
				    .flush_time = 30 * CGN_SEC},
		.cfg = {.telemetry = test_telemetry(), .ram_bytes = ram}};
	disk_folder_make(w->root, "kvssd");
	(void)snprintf(w->dir, sizeof w->dir, "%s/kv", w->root);
	w->ssd.dir = w->dir;
	w->cfg.ssd = &w->ssd;
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	world_open(w);
}

static void world_again(struct world *w)
{
	kvstore_free(&w->s);
	world_open(w);
}

static void world_end(struct world *w)
{
	kvstore_free(&w->s);
	cgn_loop_free(&w->l);
	disk_folder_remove(w->root);
}

static struct block_key key_of(uint32_t i)
{
	return (struct block_key){.digest = digest_of((struct cgn_str){(const char *)&i, sizeof i}),
		.segment = i % 3};
}

static void value_fill(uint8_t *p, size_t n, uint32_t key, uint32_t version)
{
	uint64_t x = ((uint64_t)key << 32 | version) * MIX_GOLDEN + n;
	for (size_t i = 0; i < n; i += sizeof x) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(p + i, &x, n - i < sizeof x ? n - i : sizeof x);
	}
}

static void put_as(struct kvstore *s, uint32_t i, uint32_t version, size_t n, struct cgn_str name)
{
	struct block_key k = key_of(i);
	struct block_meta meta = {.model = CGN_STR("model-a"),
		.name = name,
		.tokens = version,
		.created_unix_ms = 1234567};
	struct kvstore_writer *w = NULL;
	struct cgn_err err = {0};
	uint8_t *p = malloc(n + 1);
	assert_non_null(p);
	value_fill(p, n, i, version);
	if (!cgn_ok(kvstore_put(s, &k, &meta, n, &w, &err)))
		fail_msg("%s", err.msg);
	kvstore_writer_add(w, p, n);
	assert_true(cgn_ok(kvstore_writer_commit(&w, NULL, 0, &err)));
	free(p);
}

static void store_put(struct world *w, uint32_t i, uint32_t version, size_t n)
{
	put_as(w->s, i, version, n, (struct cgn_str){0});
}

/* Check each byte of the value. */
static void value_check(const struct kvstore_block *b, uint32_t i)
{
	struct iovec iov[1100];
	size_t n = 0, at = 0;
	uint8_t *want = malloc(kvstore_block_size(b) + 1);
	assert_non_null(want);
	value_fill(want, kvstore_block_size(b), i, kvstore_block_info(b).tokens);
	assert_int_equal(kvstore_block_iov(b, 0, UINT64_MAX, iov, CGN_COUNT(iov), &n), kvstore_block_size(b));
	for (size_t k = 0; k < n; k++) {
		assert_memory_equal(iov[k].iov_base, want + at, iov[k].iov_len);
		at += iov[k].iov_len;
	}
	assert_true(cgn_str_is(kvstore_block_model(b), "model-a"));
	free(want);
}

/* ---- reads ---- */
struct answer {
	uint32_t key, version;
	enum cgn_code code;
	bool done;
	char name[32];
};

static void on_read(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct answer *a = user;
	a->done = true;
	a->code = why->code;
	if (*take == NULL)
		return;
	a->code = CGN_FINE;
	value_check(*take, a->key);
	a->version = kvstore_block_info(*take).tokens;
	(void)cgn_str_copyz(a->name, sizeof a->name, kvstore_block_name(*take));
	kvstore_block_unref(take);
}

static bool all_done(struct world *w)
{
	for (size_t i = 0; i < w->n_waiting; i++)
		if (!w->waiting[i].done)
			return false;
	return true;
}

static void wait_for(struct world *w, struct answer *a, size_t n)
{
	w->waiting = a;
	w->n_waiting = n;
	loop_until(w->l, all_done, w);
}

static void read_ask(struct world *w, uint32_t i, struct answer *a)
{
	struct block_key k = key_of(i);
	*a = (struct answer){.key = i};
	assert_non_null(kvstore_get(w->s, w->l, &k, on_read, a));
}

static struct answer read_got(struct world *w, uint32_t i)
{
	struct answer a;
	read_ask(w, i, &a);
	wait_for(w, &a, 1);
	return a;
}

static unsigned store_tiers(struct world *w, uint32_t i)
{
	struct block_key k = key_of(i);
	struct block_info info;
	(void)kvstore_lookup(w->s, &k, &info);
	return info.tiers;
}

static struct kvstore_stats store_stats(struct world *w)
{
	struct kvstore_stats st;
	kvstore_stats(w->s, &st);
	return st;
}

/* Wait until the queue is empty and no write is in flight. */
static void store_settle(struct world *w)
{
	for (unsigned i = 0; i < 20000; i++) {
		struct kvstore_stats st = store_stats(w);
		if (st.ssd.queue_bytes == 0 && st.ssd.queue_blocks == 0)
			return;
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	fail_msg("the queue does not empty");
}

#define RAM (1U << BLOCK_RAM)
#define SSD (1U << BLOCK_SSD)

static void test_what_is_used_again_is_written(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w, 16 * MIB, false);
	store_put(&w, 1, 7, 100000);
	store_put(&w, 2, 7, 100000);
	store_put(&w, 3, 7, 300);
	assert_int_equal(read_got(&w, 1).code, CGN_FINE);
	assert_int_equal(read_got(&w, 3).code, CGN_FINE);
	store_settle(&w);
	assert_int_equal(store_tiers(&w, 1), RAM | SSD);
	assert_int_equal(store_tiers(&w, 2), RAM);
	assert_int_equal(store_tiers(&w, 3), RAM | SSD);
	world_again(&w);
	assert_int_equal(store_tiers(&w, 1), SSD);
	assert_int_equal(store_tiers(&w, 2), 0);
	struct answer a = read_got(&w, 1);
	assert_int_equal(a.code, CGN_FINE);
	assert_int_equal(a.version, 7);
	assert_int_equal(store_tiers(&w, 1), RAM | SSD);
	assert_int_equal(read_got(&w, 3).code, CGN_FINE);
	struct block_key lost = key_of(2);
	assert_null(kvstore_get_ram(w.s, &lost, true));
	assert_int_equal(read_got(&w, 2).code, CGN_NOT_FOUND); /* The same miss. */
	struct kvstore_stats st = store_stats(&w);
	assert_int_equal(st.tier[BLOCK_SSD].blocks, 2);
	assert_int_equal(st.tier[BLOCK_SSD].hits, 2);
	assert_int_equal(st.tier[BLOCK_RAM].blocks, 2);
	assert_int_equal(st.misses, 1);
	world_end(&w);
}

static void test_what_leaves_ram_stays_on_ssd(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w, 8 * MIB, true);
	for (uint32_t i = 0; i < 60; i++) {
		store_put(&w, i, 1, 300000);
		if (i % 4 == 0)
			store_settle(&w);
	}
	store_settle(&w);
	struct kvstore_stats st = store_stats(&w);
	assert_int_equal(st.tier[BLOCK_SSD].blocks, 60);
	assert_true(st.tier[BLOCK_RAM].blocks < 30 && st.tier[BLOCK_RAM].evictions >= 30);
	assert_true(st.tier[BLOCK_RAM].bytes <= st.tier[BLOCK_RAM].budget &&
		st.tier[BLOCK_SSD].bytes <= st.tier[BLOCK_SSD].budget);
	for (unsigned round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 60; i++)
			assert_int_equal(read_got(&w, i).code, CGN_FINE);
		world_again(&w);
	}
	assert_int_equal(store_stats(&w).tier[BLOCK_SSD].blocks, 60);
	world_end(&w);
}

/* Wait until |n| blocks are or were on SSD. */
static void store_wait_written(struct world *w, uint64_t n)
{
	for (unsigned i = 0; i < 20000; i++) {
		struct kvstore_stats st = store_stats(w);
		if (st.tier[BLOCK_SSD].blocks + st.tier[BLOCK_SSD].evictions == n && st.ssd.queue_bytes == 0)
			return;
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	fail_msg("blocks that found the queue full are not written");
}

static void test_auto_keeps_what_leaves_ram(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w, 16 * MIB, false);
	w.ssd.admission = KVSTORE_WRITE_AUTO;
	w.ssd.writes_per_day = 1;
	world_again(&w);
	for (uint32_t i = 0; i < 60; i++) {
		store_put(&w, i, 1, MIB);
		if (i % 4 == 3)
			store_settle(&w);
	}
	for (uint32_t i = 0; i < 60; i++)
		assert_int_not_equal(store_tiers(&w, i), 0);
	for (uint32_t i = 0; i < 60; i++)
		assert_int_equal(read_got(&w, i).code, CGN_FINE);
	world_end(&w);
}

/* A burst that is larger than the queue: what found it full is written when the queue is empty. */
static void test_auto_catches_up(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w, 64 * MIB, false);
	w.ssd.admission = KVSTORE_WRITE_AUTO;
	world_again(&w);
	for (uint32_t i = 0; i < 50; i++)
		store_put(&w, i, 1, MIB);
	store_wait_written(&w, 50);
	world_again(&w);
	for (uint32_t i = 0; i < 50; i++)
		assert_int_equal(store_tiers(&w, i), SSD);
	world_end(&w);
}

static void test_auto_keeps_to_its_budget(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w, 16 * MIB, false);
	w.ssd.admission = KVSTORE_WRITE_AUTO;
	w.ssd.writes_per_day = 10. / 128; /* 10 MiB a day */
	world_again(&w);
	for (uint32_t i = 0; i < 60; i++) {
		store_put(&w, i, 1, MIB);
		store_settle(&w);
	}
	struct kvstore_stats st = store_stats(&w);
	assert_in_range(st.tier[BLOCK_SSD].blocks, 5, 10);
	world_again(&w); /* A restart does not give the budget back. */
	for (uint32_t i = 100; i < 160; i++) {
		store_put(&w, i, 1, MIB);
		store_settle(&w);
	}
	assert_in_range(store_stats(&w).tier[BLOCK_SSD].blocks, 5, 10);
	world_end(&w);
}

static void test_names_and_times_are_kept(void **state)
{
	struct world w;
	struct block_key k = key_of(5);
	struct block_info info;
	(void)state;
	world_begin(&w, 16 * MIB, true);
	put_as(w.s, 5, 9, 100000, CGN_STR("user:5"));
	store_settle(&w); /* The next value finds no room in the queue beside this one. */
	put_as(w.s, 6, 9, 4200000, CGN_STR("user:6")); /* Possibly in several runs of pages. */
	store_settle(&w);
	assert_true(kvstore_expire(w.s, &k, KVSTORE_ANY_EXPIRY, 99999999999999));
	world_again(&w);
	assert_true(kvstore_lookup(w.s, &k, &info));
	assert_int_equal(info.expires_unix_ms, 99999999999999);
	assert_int_equal(info.created_unix_ms, 1234567);
	assert_int_equal(info.tokens, 9);
	assert_int_equal(info.size, 100000);
	struct answer a = read_got(&w, 5);
	assert_string_equal(a.name, "user:5");
	a = read_got(&w, 6);
	assert_string_equal(a.name, "user:6");
	assert_true(kvstore_expire(w.s, &k, KVSTORE_ANY_EXPIRY, 1));
	assert_int_equal(read_got(&w, 5).code, CGN_NOT_FOUND);
	world_again(&w);
	assert_int_equal(store_tiers(&w, 5), 0);
	world_end(&w);
}

static uint64_t wall;

static uint64_t fake_wall(void)
{
	return wall;
}

/* A value that came back from SSD ends when it was to end. */
static void test_an_end_holds_for_what_was_read_again(void **state)
{
	struct world w;
	struct block_key k = key_of(0);
	struct block_info info;
	(void)state;
	world_begin(&w, 8 * MIB, true);
	wall = UINT64_C(1900000000000);
	w.cfg.wall_ms = fake_wall;
	world_again(&w);
	for (uint32_t i = 0; i < 60; i++) {
		store_put(&w, i, 1, 300000);
		store_settle(&w);
	}
	assert_false(store_tiers(&w, 0) & 1U << BLOCK_RAM);
	assert_int_equal(read_got(&w, 0).code, CGN_FINE);
	assert_true(store_tiers(&w, 0) & 1U << BLOCK_RAM);
	assert_true(kvstore_expire(w.s, &k, KVSTORE_ANY_EXPIRY, wall + 1000));
	assert_true(kvstore_lookup(w.s, &k, &info));
	wall += 1000;
	assert_false(kvstore_lookup(w.s, &k, &info));
	assert_int_equal(read_got(&w, 0).code, CGN_NOT_FOUND);
	world_end(&w);
}

static void test_removed_and_replaced(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w, 16 * MIB, true);
	for (uint32_t i = 0; i < 9; i++)
		store_put(&w, i, 1, i < 6 ? 100000 : 100);
	store_settle(&w);
	for (uint32_t i = 0; i < 9; i += 3)
		assert_true(kvstore_remove(w.s, &(struct block_key){key_of(i).digest, i % 3}));
	for (uint32_t i = 1; i < 9; i += 3)
		store_put(&w, i, 2, 50000);
	world_again(&w);
	for (uint32_t i = 0; i < 9; i++) {
		struct answer a = read_got(&w, i);
		assert_int_equal(a.code, i % 3 == 0 ? CGN_NOT_FOUND : CGN_FINE);
		if (i % 3 != 0)
			assert_int_equal(a.version, i % 3 == 1 ? 2 : 1);
	}
	assert_int_equal(store_stats(&w).tier[BLOCK_SSD].blocks, 6);
	world_end(&w);
}

static void test_one_read_for_all_who_wait(void **state)
{
	struct world w;
	struct answer a[50];
	(void)state;
	world_begin(&w, 32 * MIB, true);
	store_put(&w, 1, 3, 4 * MIB);
	world_again(&w);
	for (unsigned i = 0; i < CGN_COUNT(a); i++)
		read_ask(&w, 1, &a[i]);
	wait_for(&w, a, CGN_COUNT(a));
	for (unsigned i = 0; i < CGN_COUNT(a); i++)
		assert_int_equal(a[i].code, CGN_FINE);
	assert_int_equal(store_stats(&w).tier[BLOCK_SSD].hits, 1);
	world_end(&w);
}

static void never_done(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	(void)user;
	(void)take;
	(void)why;
	fail_msg("called after it was cancelled");
}

static void test_cancelled(void **state)
{
	struct world w;
	struct kvstore_read *r = NULL;
	struct block_key k = key_of(1);
	(void)state;
	world_begin(&w, 16 * MIB, true);
	store_put(&w, 1, 3, MIB);
	world_again(&w);
	r = kvstore_get(w.s, w.l, &k, never_done, NULL);
	struct answer a;
	read_ask(&w, 1, &a);
	kvstore_read_cancel(&r);
	wait_for(&w, &a, 1);
	assert_int_equal(a.code, CGN_FINE);
	world_end(&w);
}

static void test_a_slow_disk_is_caught_up_with(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w, 8 * MIB, true); /* The queue holds 2 MiB. */
	for (uint32_t i = 0; i < 40; i += 2) {
		store_put(&w, i, 1, 4000000); /* While this value is being written, no other finds room. */
		store_put(&w, i + 1, 1, 100);
		store_wait_written(&w, i + 2);
	}
	struct kvstore_stats st = store_stats(&w);
	assert_true(st.ssd.queue_full > 0);
	world_again(&w);
	uint64_t there = 0;
	for (uint32_t i = 0; i < 40; i++)
		there += store_tiers(&w, i) == SSD;
	assert_int_equal(there, st.tier[BLOCK_SSD].blocks);
	world_end(&w);
}

/* A full queue drops writes of values, not changes of values. */
static void test_an_end_that_is_set_while_the_queue_is_full(void **state)
{
	struct world w;
	struct block_info info;
	(void)state;
	world_begin(&w, 8 * MIB, true);
	for (uint32_t i = 0; i < 20; i++)
		store_put(&w, i, 1, i % 2 == 0 ? 300 : 50000);
	store_settle(&w);
	world_again(&w);
	store_put(&w, 100, 1, 4000000); /* While this value is being written, no other finds room. */
	for (uint32_t i = 0; i < 20; i++) {
		struct block_key k = key_of(i);
		assert_true(kvstore_expire(w.s, &k, KVSTORE_ANY_EXPIRY, 99999999990000));
		assert_true(kvstore_expire(w.s, &k, KVSTORE_ANY_EXPIRY, 99999999999000 + i));
	}
	store_settle(&w);
	world_again(&w);
	for (uint32_t i = 0; i < 20; i++) {
		struct block_key k = key_of(i);
		assert_true(kvstore_lookup(w.s, &k, &info));
		assert_int_equal(info.expires_unix_ms, 99999999999000 + i);
	}
	world_end(&w);
}

/* The disk has the value, and the store does not know where yet. */
static void test_an_end_that_is_set_while_the_value_is_written(void **state)
{
	const uint64_t end = UINT64_C(99999999999000);
	struct world w;
	struct block_info info;
	struct block_key k = key_of(1);
	(void)state;
	world_begin(&w, 8 * MIB, true);
	struct kvdisk *d = w.s->ssd->disk;
	pthread_mutex_t *stripe = kvdisk_stripe(d, &k);
	(void)pthread_mutex_lock(stripe);
	store_put(&w, 1, 1, 100000);
	while (atomic_load(&d->counts.written) < 100000)
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	assert_true(kvstore_expire(w.s, &k, KVSTORE_ANY_EXPIRY, end));
	(void)pthread_mutex_unlock(stripe);
	store_settle(&w);
	world_again(&w);
	assert_true(kvstore_lookup(w.s, &k, &info));
	assert_int_equal(info.expires_unix_ms, end);
	world_end(&w);
}

/* A block that was pinned for a moment after it was chosen leaves RAM, and its queue too. */
static void test_a_chosen_block_leaves_its_queue(void **state)
{
	struct world w;
	struct eviction_stop e;
	struct block_info info;
	(void)state;
	world_begin(&w, 8 * MIB, true);
	for (uint32_t i = 0; i < 128; i++) {
		store_put(&w, i, 1, 65536);
		store_wait_written(&w, i + 1);
	}
	assert_int_equal(store_stats(&w).tier[BLOCK_RAM].blocks, 128);
	eviction_begin(&e, w.s, key_of, MIB);
	assert_true(cgn_ok(kvstore_pin(w.s, &e.other, UINT64_MAX, NULL)));
	assert_true(cgn_ok(kvstore_pin(w.s, &e.other, 0, NULL)));
	eviction_end(&e);
	assert_true(kvstore_lookup(w.s, &e.other, &info));
	assert_int_equal(info.tiers, SSD);
	for (uint32_t i = 1000; i < 1016; i++)
		store_put(&w, i, 1, MIB);
	assert_int_equal(store_tiers(&w, 1015) & RAM, RAM);
	world_end(&w);
}

static void flip_slabs(struct world *w)
{
	DIR *d = opendir(w->dir);
	assert_non_null(d);
	for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
		char path[512];
		uint8_t b = 0;
		if (strncmp(e->d_name, "slab-", 5) != 0)
			continue;
		(void)snprintf(path, sizeof path, "%s/%s", w->dir, e->d_name);
		int fd = open(path, O_RDWR);
		assert_int_equal(pread(fd, &b, 1, 60000), 1);
		b ^= 1;
		assert_int_equal(pwrite(fd, &b, 1, 60000), 1);
		close(fd);
	}
	closedir(d);
}

static void test_damage_is_a_miss(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w, 16 * MIB, true);
	store_put(&w, 1, 3, MIB);
	kvstore_free(&w.s);
	flip_slabs(&w);
	world_open(&w);
	assert_int_equal(store_tiers(&w, 1), SSD);
	assert_int_equal(read_got(&w, 1).code, CGN_STORAGE);
	assert_int_equal(store_tiers(&w, 1), 0);
	assert_int_equal(read_got(&w, 1).code, CGN_NOT_FOUND);
	assert_int_equal(store_stats(&w).corrupt, 1);
	assert_int_equal(store_stats(&w).tier[BLOCK_SSD].blocks, 0);
	store_put(&w, 1, 4, MIB);
	store_settle(&w);
	assert_int_equal(store_tiers(&w, 1), RAM | SSD);
	world_end(&w);
}

/* A reader of a value on SSD may find that the value came to RAM meanwhile. */
static void test_what_came_to_ram_is_compared_too(void **state)
{
	struct world w;
	struct block_key k = key_of(1);
	struct iovec iov[2];
	size_t n = 0;
	(void)state;
	world_begin(&w, 16 * MIB, false);
	for (unsigned damaged = 0; damaged < 2; damaged++) {
		store_put(&w, 1, 3, MIB);
		struct kvstore_block *b = kvstore_get_ram(w.s, &k, true);
		store_settle(&w); /* The value was worth writing. */
		(void)kvstore_block_iov(b, MIB / 2, 1, iov, 2, &n);
		((char *)iov[0].iov_base)[0] ^= (char)damaged;
		kvstore_block_unref(&b);
		struct answer a = {.key = 1};
		struct kvstore_read *r = calloc(1, sizeof *r);
		assert_non_null(r);
		*r = (struct kvstore_read){.store = w.s, .loop = w.l, .key = k, .done = on_read, .user = &a};
		kvstore_fetch(w.s->ssd->fetches, r);
		wait_for(&w, &a, 1);
		assert_int_equal(a.code, damaged ? CGN_STORAGE : CGN_FINE);
		assert_int_equal(store_stats(&w).corrupt, damaged);
	}
	assert_int_equal(store_tiers(&w, 1), 0);
	world_end(&w);
}

/* The store starts with less memory than a value takes: no other value is evicted for it. */
static void test_a_value_larger_than_ram_is_now(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w, 32 * MIB, true);
	store_put(&w, 1, 3, 7 * MIB);
	w.cfg.ram_bytes = 8 * MIB;
	world_again(&w);
	for (uint32_t i = 2; i < 6; i++)
		store_put(&w, i, 1, MIB);
	assert_int_equal(read_got(&w, 1).code, CGN_TOO_LARGE);
	for (uint32_t i = 2; i < 6; i++)
		assert_true((store_tiers(&w, i) & RAM) != 0);
	assert_int_equal(store_stats(&w).tier[BLOCK_RAM].evictions, 0);
	assert_int_equal(store_tiers(&w, 1), SSD);
	w.cfg.ram_bytes = 32 * MIB;
	world_again(&w);
	assert_int_equal(read_got(&w, 1).code, CGN_FINE);
	world_end(&w);
}

static void test_pins_on_ssd(void **state)
{
	struct world w;
	struct block_key k = key_of(1);
	struct block_info info;
	(void)state;
	world_begin(&w, 16 * MIB, true);
	store_put(&w, 1, 3, MIB);
	world_again(&w);
	assert_true(cgn_ok(kvstore_pin(w.s, &k, UINT64_MAX, NULL)));
	for (uint32_t i = 10; i < 500; i++) /* Several times the capacity of the SSD. */
		store_put(&w, i, 1, MIB);
	store_settle(&w);
	assert_true(kvstore_lookup(w.s, &k, &info));
	assert_true(info.pinned);
	assert_int_equal(read_got(&w, 1).code, CGN_FINE);
	for (uint32_t i = 500; i < 530; i++)
		store_put(&w, i, 1, MIB);
	assert_true((store_tiers(&w, 1) & RAM) != 0);
	assert_true(cgn_ok(kvstore_pin(w.s, &k, 0, NULL)));
	struct kvstore_stats st = store_stats(&w);
	assert_true(st.tier[BLOCK_SSD].bytes <= st.tier[BLOCK_SSD].budget);
	world_end(&w);
}

/* ---- many threads ---- */
#define STORM_KEYS 200U
struct storm {
	struct world *w;
	uint32_t seed;
	pthread_t thread;
};

static void *storm_run(void *arg)
{
	struct storm *st = arg;
	uint32_t x = st->seed;
	for (unsigned n = 0; n < 1500; n++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		uint32_t i = x % STORM_KEYS;
		struct block_key k = key_of(i);
		if (x >> 8 & 1) {
			put_as(st->w->s, i, x, 1000 + x % 150000, (struct cgn_str){0});
		} else if ((x >> 9 & 7) == 0) {
			(void)kvstore_remove(st->w->s, &k);
		} else {
			struct kvstore_block *b = kvstore_get_ram(st->w->s, &k, true);
			if (b != NULL)
				value_check(b, i);
			kvstore_block_unref(&b);
		}
	}
	return NULL;
}

static void test_a_storm(void **state)
{
	struct world w;
	struct storm st[3];
	(void)state;
	world_begin(&w, 8 * MIB, false);
	for (uint32_t i = 0; i < CGN_COUNT(st); i++) {
		st[i] = (struct storm){.w = &w, .seed = 77 + i};
		assert_int_equal(pthread_create(&st[i].thread, NULL, storm_run, &st[i]), 0);
	}
	for (uint32_t n = 0; n < 400; n++) {
		struct answer a = read_got(&w, n * 7919 % STORM_KEYS);
		assert_true(a.code == CGN_FINE || a.code == CGN_NOT_FOUND || a.code == CGN_OVERLOADED);
	}
	for (uint32_t i = 0; i < CGN_COUNT(st); i++)
		assert_int_equal(pthread_join(st[i].thread, NULL), 0);
	uint32_t versions[STORM_KEYS], there = 0;
	for (uint32_t i = 0; i < STORM_KEYS; i++) {
		struct answer a = read_got(&w, i);
		versions[i] = a.code == CGN_FINE ? a.version : 0;
	}
	store_settle(&w);
	world_again(&w);
	for (uint32_t i = 0; i < STORM_KEYS; i++) { /* The values in the store are the last that were put. */
		struct answer a = read_got(&w, i);
		assert_true(a.code == CGN_NOT_FOUND || (a.code == CGN_FINE && a.version == versions[i]));
		there += a.code == CGN_FINE;
	}
	assert_true(there > 0);
	assert_int_equal(store_stats(&w).corrupt, 0);
	world_end(&w);
}

static void test_a_folder_that_cannot_be_used(void **state)
{
	struct world w;
	struct kvstore *second = NULL;
	struct cgn_err err = {0};
	(void)state;
	world_begin(&w, 16 * MIB, true);
	assert_int_equal(kvstore_new(&w.cfg, &second, &err).code, CGN_STORAGE);
	assert_int_equal(cgn_code_exit(CGN_STORAGE), 8);
	assert_non_null(strstr(err.msg, "another process"));
	world_end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_used_again_is_written),
		cmocka_unit_test(test_what_leaves_ram_stays_on_ssd),
		cmocka_unit_test(test_names_and_times_are_kept),
		cmocka_unit_test(test_removed_and_replaced),
		cmocka_unit_test(test_an_end_holds_for_what_was_read_again),
		cmocka_unit_test(test_one_read_for_all_who_wait),
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_a_slow_disk_is_caught_up_with),
		cmocka_unit_test(test_auto_keeps_what_leaves_ram),
		cmocka_unit_test(test_auto_catches_up),
		cmocka_unit_test(test_auto_keeps_to_its_budget),
		cmocka_unit_test(test_an_end_that_is_set_while_the_queue_is_full),
		cmocka_unit_test(test_an_end_that_is_set_while_the_value_is_written),
		cmocka_unit_test(test_a_chosen_block_leaves_its_queue),
		cmocka_unit_test(test_damage_is_a_miss),
		cmocka_unit_test(test_what_came_to_ram_is_compared_too),
		cmocka_unit_test(test_a_value_larger_than_ram_is_now),
		cmocka_unit_test(test_pins_on_ssd),
		cmocka_unit_test(test_a_storm),
		cmocka_unit_test(test_a_folder_that_cannot_be_used),
	};
	log_setup("test", LOG_ERROR, LOG_HUMAN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
