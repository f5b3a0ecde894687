/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mix/mix.h"
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <rocksdb/c.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#include "disk_folder.h"
#include "io/os/disk/disk.h"

#define MIB ((uint64_t)1 << 20)
#define KIB ((uint64_t)1 << 10)

/* ---- the syncs that the kernel gets ---- */
static struct {
	struct stat folder;     /* The folder of the store. */
	unsigned folder_synced; /* Times that it was synced. */
	bool carried;           /* A value was carried since the last sync of a slab file. */
	bool lost;              /* A slab file was deleted then. */
} disk_saw;

static bool is_slab(int fd)
{
	char link[64], path[PATH_MAX] = "";
	(void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/slab-") != NULL;
}

int fsync(int fd)
{
	struct stat st;
	if (fstat(fd, &st) == 0 && st.st_dev == disk_saw.folder.st_dev && st.st_ino == disk_saw.folder.st_ino)
		disk_saw.folder_synced++;
	return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	if (is_slab(fd))
		disk_saw.carried = false;
	return (int)syscall(SYS_fdatasync, fd);
}

int unlink(const char *path)
{
	disk_saw.lost |= strstr(path, "/slab-") != NULL && disk_saw.carried;
	return (int)syscall(SYS_unlink, path);
}

/* ---- a world: a folder, a clock, an owner ---- */
struct world {
	char root[64], dir[80];
	struct kvdisk *d;
	struct kvdisk_cfg cfg;
	struct kvdisk_opening how;
	struct cgn_err err;
};
static struct {
	uint64_t wall, boot;
	enum kvdisk_worth worth;
	uint64_t found, moved, gone;
	uint32_t unwanted;        /* Segment of the key that the owner does not want. */
	uint64_t asked, patience; /* Calls of goes_on, and how many it allows; 0: all. */
} told;

static uint64_t fake_wall(void)
{
	return told.wall;
}

static uint64_t fake_boot(void)
{
	return told.boot;
}

static bool on_found(void *user, const struct kvdisk_entry *e)
{
	(void)user;
	assert_true(e->place != 0 && e->size <= BLOCK_MAX_BYTES);
	told.found++;
	return e->key.segment != told.unwanted;
}

static enum kvdisk_worth worth_of(void *user, const struct block_key *k, kvdisk_place at)
{
	(void)user;
	(void)k;
	assert_true(at != 0);
	return told.worth;
}

static kvdisk_place *places_to_update; /* Places by segment. */
static void on_moved(void *user, const struct block_key *k, kvdisk_place from, kvdisk_place to)
{
	(void)user;
	assert_true(from != to);
	told.moved++;
	disk_saw.carried |= !place_of(to).small;
	if (places_to_update != NULL && places_to_update[k->segment] == from)
		places_to_update[k->segment] = to;
}

static void on_gone(void *user, const struct block_key *k, kvdisk_place at)
{
	(void)user;
	told.gone++;
	if (places_to_update != NULL && places_to_update[k->segment] == at)
		places_to_update[k->segment] = 0;
}

static bool goes_on(void *user)
{
	(void)user;
	told.boot += 1000; /* Each record takes a second. */
	return ++told.asked < told.patience || told.patience == 0;
}

static const struct kvdisk_owner owner = {.found = on_found,
	.goes_on = goes_on,
	.worth = worth_of,
	.moved = on_moved,
	.gone = on_gone};

static void world_begin(struct world *w)
{
	memset(&told, 0, sizeof told);
	told.wall = 1700000000000;
	told.boot = 5000;
	told.unwanted = UINT32_MAX;
	places_to_update = NULL;
	*w = (struct world){
		.cfg = {.budget = 64 * MIB, .owner = &owner, .wall_ms = fake_wall, .boot_ms = fake_boot}};
	disk_folder_make(w->root, "kvdisk");
	(void)snprintf(w->dir, sizeof w->dir, "%s/kv", w->root);
	w->cfg.dir = w->dir;
}

static void world_open(struct world *w)
{
	told.found = 0;
	if (!cgn_ok(kvdisk_open(&w->cfg, &w->d, &w->how, &w->err)))
		fail_msg("%s", w->err.msg);
}

static void world_again(struct world *w)
{
	kvdisk_close(&w->d);
	world_open(w);
}

static void world_end(struct world *w)
{
	kvdisk_close(&w->d);
	disk_folder_remove(w->root);
}

static struct block_key key_of(uint32_t i)
{
	return (struct block_key){.digest = digest_of((struct cgn_str){(const char *)&i, sizeof i}),
		.segment = i};
}

/* Fill |p| with a value that depends on its key, version and size alone. */
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

static cgn_rc try_put(struct kvdisk *d, uint32_t i, uint32_t version, size_t n, kvdisk_place *at,
	struct cgn_err *err)
{
	struct block_key k = key_of(i);
	struct block_meta meta = {.model = CGN_STR("model-a"),
		.name = CGN_STR("a name"),
		.tenant = i % 2 == 0 ? CGN_STR("acme")
				     : CGN_STR(""), /* a record of an earlier version has none */
		.tokens = i,
		.created_unix_ms = version};
	uint8_t *p = malloc(n + 1);
	assert_non_null(p);
	value_fill(p, n, i, version);
	/* In pieces, as values lie in pages. */
	struct iovec iov[2] = {{p, n / 3}, {p + n / 3, n - n / 3}};
	cgn_rc rc = kvdisk_put(d, &k, &meta, XXH3_64bits(p, n), iov, 2, at, err);
	free(p);
	return rc;
}

static kvdisk_place disk_put(struct world *w, uint32_t i, uint32_t version, size_t n)
{
	kvdisk_place at = 0;
	if (!cgn_ok(try_put(w->d, i, version, n, &at, &w->err)))
		fail_msg("%s", w->err.msg);
	return at;
}

/* Get the value at the place and set its version. Returns the code when there is none. */
static enum cgn_code disk_got(struct kvdisk *d, uint32_t i, kvdisk_place at, size_t n, uint32_t *version)
{
	struct block_key k = key_of(i);
	struct kvdisk_value v;
	uint8_t *p = malloc(n + 1), *want = malloc(n + 1);
	assert_non_null(p);
	assert_non_null(want);
	struct iovec iov[3] = {{p, n / 2}, {p + n / 2, n / 4}, {p + n / 2 + n / 4, n - n / 2 - n / 4}};
	cgn_rc rc = kvdisk_get(d, &k, at, iov, 3, &v, NULL);
	if (cgn_ok(rc)) {
		*version = (uint32_t)v.meta.created_unix_ms;
		value_fill(want, n, i, *version);
		assert_memory_equal(p, want, n);
		assert_true(cgn_str_is(v.meta.model, "model-a") && cgn_str_is(v.meta.name, "a name") &&
			cgn_str_is(v.meta.tenant, i % 2 == 0 ? "acme" : "") && v.meta.tokens == i);
	}
	free(p);
	free(want);
	return rc.code;
}

/* Get through the index, as after a boot. */
static enum cgn_code got_now(struct world *w, uint32_t i, uint32_t *version)
{
	struct block_key k = key_of(i);
	struct record r;
	char names[KVDISK_NAMES];
	if (!cgn_ok(entry_get(w->d, &k, &r, names)) || entry_had_its_time(w->d, &r))
		return CGN_NOT_FOUND;
	return disk_got(w->d, i, r.entry.place, r.entry.size, version);
}

static void disk_expect(struct world *w, uint32_t i, uint32_t version)
{
	uint32_t is = 0;
	assert_int_equal(got_now(w, i, &is), CGN_FINE);
	assert_int_equal(is, version);
}

static void expect_none(struct world *w, uint32_t i)
{
	uint32_t is = 0;
	assert_int_equal(got_now(w, i, &is), CGN_NOT_FOUND);
}

static struct kvdisk_stats disk_stats(struct world *w)
{
	struct kvdisk_stats s;
	kvdisk_stats(w->d, &s);
	return s;
}

/* ---- the contract ---- */
static void test_what_is_put_is_got(void **state)
{
	static const size_t sizes[] = {0, 1, 100, 32767, 32768, 32769, 65536, 1000000, 1 << 20};
	struct world w;
	uint32_t version = 0;
	(void)state;
	world_begin(&w);
	world_open(&w);
	assert_true(w.how.made && !w.how.rebuilt && w.how.entries == 0);
	for (uint32_t i = 0; i < CGN_COUNT(sizes); i++)
		assert_int_equal(disk_got(w.d, i, disk_put(&w, i, i + 1, sizes[i]), sizes[i], &version),
			CGN_FINE);
	world_again(&w);
	assert_false(w.how.made || w.how.rebuilt || w.how.small_lost);
	assert_int_equal(told.found, CGN_COUNT(sizes));
	assert_int_equal(w.how.entries, CGN_COUNT(sizes));
	for (uint32_t i = 0; i < CGN_COUNT(sizes); i++)
		disk_expect(&w, i, i + 1);
	expect_none(&w, 99);
	struct kvdisk_stats s = disk_stats(&w);
	assert_int_equal(s.entries, CGN_COUNT(sizes));
	assert_int_equal(s.corrupt, 0);
	assert_true(s.bytes <= s.budget);
	world_end(&w);
}

/* A value in more pieces than one system call takes. */
static void test_a_value_in_many_pieces(void **state)
{
	enum { N = 1000000, PIECE = 4096, PIECES = (N + PIECE - 1) / PIECE };
	static uint8_t in[N], out[N];
	struct iovec put[PIECES], get[PIECES];
	struct block_key k = key_of(5);
	struct block_meta meta = {.model = CGN_STR("m")};
	struct kvdisk_value v;
	kvdisk_place at = 0;
	struct world w;
	(void)state;
	world_begin(&w);
	world_open(&w);
	value_fill(in, N, 5, 1);
	for (size_t i = 0; i < PIECES; i++) {
		size_t n = i + 1 < PIECES ? PIECE : N - i * PIECE;
		put[i] = (struct iovec){in + i * PIECE, n};
		get[i] = (struct iovec){out + i * PIECE, n};
	}
	assert_true(cgn_ok(kvdisk_put(w.d, &k, &meta, XXH3_64bits(in, N), put, PIECES, &at, &w.err)));
	if (!cgn_ok(kvdisk_get(w.d, &k, at, get, PIECES, &v, &w.err)))
		fail_msg("%s", w.err.msg);
	assert_memory_equal(in, out, N);
	world_end(&w);
}

static void test_replaced_and_removed(void **state)
{
	struct world w;
	uint32_t version = 0;
	(void)state;
	world_begin(&w);
	world_open(&w);
	for (uint32_t i = 0; i < 4; i++) { /* Slab to slab, slab to small, small to slab, small to small. */
		kvdisk_place old = disk_put(&w, i, 1, i < 2 ? 50000 : 500);
		kvdisk_place now = disk_put(&w, i, 2, i % 2 == 0 ? 50000 : 500);
		assert_int_not_equal(disk_got(w.d, i, old, i < 2 ? 50000 : 500, &version), CGN_FINE);
		assert_int_equal(disk_got(w.d, i, now, i % 2 == 0 ? 50000 : 500, &version), CGN_FINE);
		assert_int_equal(version, 2);
	}
	struct block_key k0 = key_of(0), k3 = key_of(3), other = key_of(77);
	assert_true(kvdisk_remove(w.d, &k0) && kvdisk_remove(w.d, &k3));
	assert_false(kvdisk_remove(w.d, &k0) || kvdisk_remove(w.d, &other));
	for (unsigned round = 0; round < 2; round++) {
		expect_none(&w, 0);
		disk_expect(&w, 1, 2);
		disk_expect(&w, 2, 2);
		expect_none(&w, 3);
		assert_int_equal(disk_stats(&w).entries, 2);
		assert_int_equal(disk_stats(&w).corrupt, 0);
		world_again(&w);
	}
	assert_true(kvdisk_expire(w.d, &(struct block_key){key_of(1).digest, 1}, 12345));
	world_again(&w);
	struct record r;
	char names[KVDISK_NAMES];
	assert_true(cgn_ok(entry_get(w.d, &(struct block_key){key_of(1).digest, 1}, &r, names)));
	assert_int_equal(r.entry.meta.expires_unix_ms, 12345);
	world_end(&w);
}

/* A value whose place the owner cannot keep is dropped, since the owner could not report its replacement. */
static void test_what_is_not_wanted_goes(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w);
	world_open(&w);
	for (uint32_t i = 1; i < 5; i++)
		(void)disk_put(&w, i, 1, i % 2 == 0 ? 300 : 50000);
	for (told.unwanted = 1; told.unwanted < 3; told.unwanted++) {
		world_again(&w);
		assert_int_equal(w.how.entries, 4 - told.unwanted);
		assert_int_equal(disk_stats(&w).entries, 4 - told.unwanted);
		expect_none(&w, told.unwanted);
	}
	world_again(&w);
	expect_none(&w, 1);
	expect_none(&w, 2);
	disk_expect(&w, 4, 1);
	world_end(&w);
}

/* The value was replaced and removed while its owner did not know of it: an index that is rebuilt from the
 * headers must not find it. */
static void test_what_is_not_wanted_never_comes_back(void **state)
{
	struct world w;
	char index[96];
	(void)state;
	world_begin(&w);
	world_open(&w);
	for (uint32_t i = 1; i < 5; i++)
		(void)disk_put(&w, i, 1, i % 2 == 0 ? 300 : 50000);
	for (told.unwanted = 1; told.unwanted < 3; told.unwanted++) {
		struct block_key k = key_of(told.unwanted);
		world_again(&w);
		(void)disk_put(&w, told.unwanted, 2, 40000);
		assert_true(kvdisk_remove(w.d, &k));
	}
	kvdisk_close(&w.d);
	told.unwanted = UINT32_MAX;
	(void)snprintf(index, sizeof index, "%s/index", w.dir);
	disk_folder_remove(index);
	world_open(&w);
	assert_true(w.how.rebuilt);
	expect_none(&w, 1);
	expect_none(&w, 2);
	disk_expect(&w, 3, 1);
	disk_expect(&w, 4, 1);
	world_end(&w);
}

/* Starts that are ended while they rebuild the index, each after some records. Each goes on where the one
 * before it was, and none takes the records so far for the whole. */
static void test_a_rebuild_that_is_ended_goes_on(void **state)
{
	struct world w;
	char index[96];
	uint64_t starts = 0, most = 0;
	(void)state;
	world_begin(&w);
	w.cfg.file_bytes = MIB;
	world_open(&w);
	for (uint32_t i = 1; i <= 60; i++)
		(void)disk_put(&w, i, 1, i % 4 == 0 ? 300 : 200000);
	kvdisk_close(&w.d);
	(void)snprintf(index, sizeof index, "%s/index", w.dir);
	disk_folder_remove(index);
	told.patience = 12;
	for (bool ended = true; ended; starts++) {
		told.asked = told.found = 0;
		cgn_rc rc = kvdisk_open(&w.cfg, &w.d, &w.how, &w.err);
		ended = !cgn_ok(rc);
		assert_int_equal(rc.code, ended ? CGN_CANCELLED : CGN_FINE);
		assert_true(starts < 30);
		most = told.asked > most ? told.asked : most;
		if (starts == 4) /* The rest is small values, which one start must read. */
			told.patience = 40;
	}
	assert_true(starts > 4 && most < 60);
	assert_true(w.how.rebuilt);
	for (uint32_t i = 1; i <= 60; i++)
		disk_expect(&w, i, 1);
	told.patience = 0;
	world_again(&w);
	assert_false(w.how.rebuilt);
	assert_int_equal(told.found, 60);
	world_end(&w);
}

/* The databases of a start that was killed just after it had made new ones. */
static void test_a_start_that_was_killed_is_finished(void **state)
{
	struct world w;
	char path[128];
	(void)state;
	world_begin(&w);
	world_open(&w);
	for (uint32_t i = 1; i <= 20; i++)
		(void)disk_put(&w, i, 1, i % 2 == 0 ? 300 : 50000);
	kvdisk_close(&w.d);
	static const char *const marks[] = {"small.unfinished", "index.unfinished"};
	for (size_t i = 0; i < CGN_COUNT(marks); i++) {
		(void)snprintf(path, sizeof path, "%s/%s", w.dir, marks[i]);
		assert_true(cgn_ok(disk_write_file_atomic(path, CGN_STR("00000000\n"), 0640, NULL)));
	}
	(void)snprintf(path, sizeof path, "%s/small", w.dir);
	disk_folder_remove(path);
	world_open(&w);
	assert_true(w.how.rebuilt && w.how.small_lost);
	for (uint32_t i = 1; i <= 20; i++)
		i % 2 == 0 ? expect_none(&w, i) : disk_expect(&w, i, 1);
	world_again(&w);
	assert_false(w.how.rebuilt || w.how.small_lost);
	assert_int_equal(told.found, 10);
	for (size_t i = 0; i < CGN_COUNT(marks); i++) {
		(void)snprintf(path, sizeof path, "%s/%s", w.dir, marks[i]);
		assert_int_equal(access(path, F_OK), -1);
	}
	world_end(&w);
}

static void test_a_place_is_bound_to_its_key(void **state)
{
	struct world w;
	uint32_t version = 0;
	(void)state;
	world_begin(&w);
	world_open(&w);
	kvdisk_place a = disk_put(&w, 1, 1, 40000), b = disk_put(&w, 2, 1, 40000),
		     small = disk_put(&w, 3, 1, 40);
	assert_int_not_equal(disk_got(w.d, 2, a, 40000, &version), CGN_FINE);
	assert_int_not_equal(disk_got(w.d, 1, b, 40000, &version), CGN_FINE);
	assert_int_not_equal(disk_got(w.d, 1, small, 40, &version), CGN_FINE);
	assert_int_equal(disk_got(w.d, 1, a, 39999, &version), CGN_NOT_FOUND);
	/* No such file. */
	assert_int_equal(disk_got(w.d, 1, a + ((uint64_t)1 << 36), 40000, &version), CGN_NOT_FOUND);
	disk_expect(&w, 1, 1);
	disk_expect(&w, 2, 1);
	disk_expect(&w, 3, 1);
	assert_int_equal(disk_stats(&w).corrupt, 0); /* A wrong place is not counted as corruption. */
	world_end(&w);
}

/* ---- the budget ---- */
static void fill_up(struct world *w, uint32_t from, uint32_t n, size_t size)
{
	for (uint32_t i = from; i < from + n; i++) {
		(void)disk_put(w, i, 1, size);
		if (i % 16 == 0) {
			struct kvdisk_stats s = disk_stats(w);
			assert_true(s.bytes <= s.budget);
		}
	}
}

static void test_the_oldest_goes(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w);
	world_open(&w);
	fill_up(&w, 0, 600, 256 * KIB); /* 150 MiB */
	assert_true(told.gone > 300 && told.moved == 0);
	expect_none(&w, 0);
	disk_expect(&w, 599, 1);
	struct kvdisk_stats s = disk_stats(&w);
	assert_int_equal(s.entries, 600 - told.gone);
	assert_in_range(s.live_bytes, s.entries * 256 * KIB, s.budget);
	assert_true(s.reclaimed > 10 && s.dropped == told.gone);
	world_again(&w);
	assert_int_equal(told.found, s.entries);
	world_end(&w);
}

/* The older record of a value lies in the file that goes: the value itself stays. */
static void test_what_was_written_again_outlives_its_old_file(void **state)
{
	struct world w;
	uint32_t i = 1;
	(void)state;
	world_begin(&w);
	world_open(&w);
	(void)disk_put(&w, 0, 1, 256 * KIB);
	for (; i < 100; i++)
		(void)disk_put(&w, i, 1, 256 * KIB);
	(void)disk_put(&w, 0, 2, 256 * KIB);
	for (; disk_stats(&w).reclaimed == 0; i++)
		(void)disk_put(&w, i, 1, 256 * KIB);
	disk_expect(&w, 0, 2);
	expect_none(&w, 1);
	world_end(&w);
}

static void test_small_ones_go_too(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w);
	world_open(&w);
	fill_up(&w, 0, 12000, 8000);
	assert_true(told.gone > 1000);
	expect_none(&w, 0);
	disk_expect(&w, 11999, 1);
	struct kvdisk_stats s = disk_stats(&w);
	assert_true(s.bytes <= s.budget && s.entries > 1000);
	world_again(&w);
	assert_int_equal(told.found, s.entries);
	disk_expect(&w, 11999, 1);
	world_end(&w);
}

static void test_what_is_worth_it_is_carried(void **state)
{
	struct world w;
	uint32_t version = 0;
	kvdisk_place places[2000] = {0};
	(void)state;
	world_begin(&w);
	world_open(&w);
	told.worth = KVDISK_CARRY;
	places_to_update = places;
	for (uint32_t i = 0; i < 1000; i++) {
		size_t n = i % 5 == 0 ? 3000 : 200 * KIB;
		places[i] = disk_put(&w, i, 7, n);
	}
	assert_true(told.moved > 50 && told.gone > 50);
	assert_true(disk_stats(&w).carried_bytes > 0);
	uint64_t there = 0;
	for (uint32_t i = 0; i < 1000; i++) {
		if (places[i] == 0)
			continue;
		assert_int_equal(disk_got(w.d, i, places[i], i % 5 == 0 ? 3000 : 200 * KIB, &version),
			CGN_FINE);
		there++;
	}
	assert_int_equal(there, disk_stats(&w).entries);
	world_end(&w);
}

/* A power cut does not find the old file gone and the new one empty. */
static void test_what_is_carried_is_synced_first(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w);
	world_open(&w);
	memset(&disk_saw, 0, sizeof disk_saw);
	told.worth = KVDISK_CARRY;
	for (uint32_t i = 0; i < 600; i++)
		(void)disk_put(&w, i, 1, 200 * KIB);
	assert_true(told.moved > 0 && disk_stats(&w).reclaimed > 0);
	assert_false(disk_saw.lost);
	world_end(&w);
}

/* A power cut does not take the name of a new file, and so all that is in it. */
static void test_the_name_of_a_new_file_is_synced(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w);
	world_open(&w);
	assert_int_equal(stat(w.dir, &disk_saw.folder), 0);
	disk_saw.folder_synced = 0;
	(void)disk_put(&w, 1, 1, 50000);
	kvdisk_tend(w.d);
	assert_int_equal(disk_saw.folder_synced, 1);
	(void)disk_put(&w, 2, 1, 50000);
	kvdisk_tend(w.d);
	assert_int_equal(disk_saw.folder_synced, 1); /* The file is the same. */
	memset(&disk_saw, 0, sizeof disk_saw);
	world_end(&w);
}

static void test_small_ones_that_are_worth_it_are_carried(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w);
	world_open(&w);
	told.worth = KVDISK_CARRY;
	fill_up(&w, 0, 12000, 8000);
	assert_true(told.moved > 100);
	world_end(&w);
}

static void test_pinned_stays(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w);
	world_open(&w);
	told.worth = KVDISK_PINNED;
	cgn_rc rc = CGN_OK;
	kvdisk_place at;
	uint32_t n = 0;
	while (n < 1000 && cgn_ok(rc = try_put(w.d, n, 1, 512 * KIB, &at, &w.err)))
		n++;
	/* All values are pinned: the put is refused, and no value is lost. */
	assert_int_equal(rc.code, CGN_STORAGE);
	assert_non_null(strstr(w.err.msg, "nothing more can go"));
	assert_int_equal(told.gone, 0);
	for (uint32_t i = 0; i < n; i++)
		disk_expect(&w, i, 1);
	struct kvdisk_stats s = disk_stats(&w);
	assert_true(s.bytes <= s.budget && s.failed == 1);
	told.worth = KVDISK_DROP;
	(void)disk_put(&w, n, 1, 512 * KIB);
	world_end(&w);
}

static void test_too_large(void **state)
{
	struct world w;
	kvdisk_place at;
	(void)state;
	world_begin(&w);
	world_open(&w);
	assert_int_equal(try_put(w.d, 1, 1, 32 * MIB, &at, &w.err).code, CGN_TOO_LARGE);
	w.cfg.budget = MIB;
	kvdisk_close(&w.d);
	assert_int_equal(kvdisk_open(&w.cfg, &w.d, &w.how, &w.err).code, CGN_INVALID);
	w.cfg.budget = (uint64_t)1 << 60; /* More than the disk has. */
	world_open(&w);
	assert_true(w.how.capped && w.how.budget < w.cfg.budget && disk_stats(&w).budget == w.how.budget);
	world_end(&w);
}

/* ---- time ---- */
static void test_time_to_live(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w);
	w.cfg.ttl_ms = 60000;
	world_open(&w);
	(void)disk_put(&w, 1, 1, 50000);
	(void)disk_put(&w, 2, 1, 50);
	told.boot += 59000;
	disk_expect(&w, 1, 1);
	disk_expect(&w, 2, 1);
	(void)disk_put(&w, 3, 1, 50000);
	told.boot += 1000;
	expect_none(&w, 1);
	expect_none(&w, 2);
	disk_expect(&w, 3, 1);
	for (uint32_t i = 10; i < 30; i++) /* Into further files. */
		(void)disk_put(&w, i, 1, MIB);
	told.boot += 61000;
	kvdisk_tend(w.d);
	assert_true(disk_stats(&w).expired >= 10); /* All but the values in the file that is being written. */
	assert_true(told.gone == disk_stats(&w).expired);
	world_end(&w);
}

static void test_a_clock_that_jumps(void **state)
{
	struct world w;
	(void)state;
	world_begin(&w);
	w.cfg.ttl_ms = 60000;
	world_open(&w);
	(void)disk_put(&w, 1, 1, 50000);
	told.wall += 1000000000000; /* 31 years, while the store is open. */
	disk_expect(&w, 1, 1);
	kvdisk_tend(w.d);
	world_again(&w);
	kvdisk_close(&w.d);
	told.wall += 1000000000000; /* The same, while the store is closed. */
	world_open(&w);
	disk_expect(&w, 1, 1);
	kvdisk_close(&w.d);
	told.wall = 0; /* A clock without a battery. */
	told.boot = 0;
	world_open(&w);
	disk_expect(&w, 1, 1);
	told.wall += 40000; /* The time that really passed counts. */
	told.boot += 40000;
	expect_none(&w, 1);
	world_end(&w);
}

/* ---- damage ---- */
static void path_of(char out[PATH_MAX], struct world *w, const char *name)
{
	(void)snprintf(out, PATH_MAX, "%s/%s", w->dir, name);
}

static void file_flip(const char *path, uint64_t off)
{
	uint8_t b;
	int fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &b, 1, (off_t)off), 1);
	b ^= 0x10;
	assert_int_equal(pwrite(fd, &b, 1, (off_t)off), 1);
	close(fd);
}

static void test_a_flipped_bit_is_a_miss(void **state)
{
	struct world w;
	char path[PATH_MAX];
	uint32_t version = 0;
	(void)state;
	world_begin(&w);
	world_open(&w);
	kvdisk_place value = disk_put(&w, 1, 1, 50000), header = disk_put(&w, 2, 1, 50000),
		     whole = disk_put(&w, 3, 1, 50000);
	struct place p = place_of(value), q = place_of(header);
	(void)snprintf(path, sizeof path, "%s/slab-%08x", w.dir, p.file);
	file_flip(path, (uint64_t)(p.at + 1) * KVDISK_UNIT + 777);
	file_flip(path, (uint64_t)q.at * KVDISK_UNIT + 33);
	assert_int_equal(disk_got(w.d, 1, value, 50000, &version), CGN_STORAGE);
	assert_int_equal(disk_got(w.d, 2, header, 50000, &version), CGN_STORAGE);
	assert_int_equal(disk_got(w.d, 3, whole, 50000, &version), CGN_FINE);
	assert_int_equal(disk_stats(&w).corrupt, 2);
	assert_int_equal(disk_stats(&w).entries, 1);
	expect_none(&w, 1); /* Dropped, and not looked up again. */
	assert_int_equal(disk_got(w.d, 1, value, 50000, &version), CGN_NOT_FOUND);
	assert_int_equal(disk_stats(&w).corrupt, 2);
	world_again(&w);
	assert_int_equal(told.found, 1);
	world_end(&w);
}

/* Get into pages and a slot, as a store has them; into whole pages; and into pieces that no device can read
 * into directly. */
static void get_into_all_kinds(struct world *w, uint32_t i, kvdisk_place at, size_t n)
{
	struct block_key k = key_of(i);
	struct kvdisk_value v;
	uint8_t *want = malloc(n), *room = aligned_alloc(KVDISK_UNIT, 2 * MIB);
	size_t pages = n / (64 * KIB) * (64 * KIB);
	assert_true(want != NULL && room != NULL);
	value_fill(want, n, i, 1);
	const struct {
		struct iovec to[3];
		size_t n;
	} kinds[] = {{{{room, n}}, 1}, {{{room, pages}, {room + MIB + 64, n - pages}}, 2},
		{{{room + 1, n}}, 1},
		{{{room, 5000}, {room + 2 * MIB - 1000, 1000}, {room + 9000, n - 6000}}, 3}};
	for (size_t kind = 0; kind < CGN_COUNT(kinds); kind++) {
		size_t from = 0;
		memset(room, 0, 2 * MIB);
		assert_true(cgn_ok(kvdisk_get(w->d, &k, at, kinds[kind].to, kinds[kind].n, &v, &w->err)));
		for (size_t p = 0; p < kinds[kind].n; from += kinds[kind].to[p++].iov_len)
			assert_memory_equal(kinds[kind].to[p].iov_base, want + from,
				kinds[kind].to[p].iov_len);
	}
	free(want);
	free(room);
}

static void test_reads_past_the_page_cache(void **state)
{
	static const size_t sizes[] = {32768, 40000, 65535, 65536, 65537, 300000, 65536 + 32768,
		65536 + 32769, MIB - 4096, MIB};
	struct world w;
	kvdisk_place at[CGN_COUNT(sizes)];
	(void)state;
	world_begin(&w);
	world_open(&w);
	for (uint32_t i = 0; i < CGN_COUNT(sizes); i++)
		at[i] = disk_put(&w, i, 1, sizes[i]);
	for (unsigned closed = 0; closed < 2; closed++) {
		for (uint32_t i = 0; i < CGN_COUNT(sizes); i++)
			get_into_all_kinds(&w, i, at[i], sizes[i]);
		world_again(&w); /* No file is being written. */
		assert_null(w.d->writing[false]);
	}
	world_end(&w);
}

static void test_a_missing_or_short_file(void **state)
{
	struct world w;
	char path[PATH_MAX];
	(void)state;
	world_begin(&w);
	world_open(&w);
	struct place p = place_of(disk_put(&w, 1, 1, 50000));
	kvdisk_place last = disk_put(&w, 2, 1, 50000);
	kvdisk_close(&w.d);
	(void)snprintf(path, sizeof path, "%s/slab-%08x", w.dir, p.file);
	assert_int_equal(truncate(path, (off_t)place_of(last).at * KVDISK_UNIT + 10000), 0);
	world_open(&w);
	assert_int_equal(w.how.entries, 1);
	assert_int_equal(w.how.dropped, 1);
	disk_expect(&w, 1, 1);
	expect_none(&w, 2);
	kvdisk_close(&w.d);
	assert_int_equal(unlink(path), 0);
	world_open(&w);
	assert_int_equal(w.how.entries, 0);
	(void)disk_put(&w, 3, 1, 50000);
	disk_expect(&w, 3, 1);
	world_end(&w);
}

/* The first bytes of a slab file are damaged: the values in it carry their own keys. */
static void test_a_damaged_head_of_a_file(void **state)
{
	struct world w, other;
	char path[PATH_MAX], from[PATH_MAX];
	(void)state;
	world_begin(&w);
	world_open(&w);
	struct place p = place_of(disk_put(&w, 1, 1, 50000));
	(void)snprintf(path, sizeof path, "%s/slab-%08x", w.dir, p.file);
	for (uint64_t at = 0; at < FILE_HEAD; at += 13) {
		kvdisk_close(&w.d);
		file_flip(path, at);
		world_open(&w);
		assert_int_equal(w.how.entries, 1);
		disk_expect(&w, 1, 1);
	}
	kvdisk_close(&w.d);
	assert_int_equal(truncate(path, 10), 0);
	world_open(&w);
	assert_int_equal(w.how.entries, 0);
	for (uint32_t i = 0; i < 100; i++) /* Eviction uses this file too. */
		(void)disk_put(&w, i, 1, MIB);
	assert_int_equal(access(path, F_OK), -1);
	assert_true(disk_stats(&w).bytes <= disk_stats(&w).budget);
	kvdisk_close(&w.d);
	world_begin(&other); /* A file of another store is left unchanged. */
	world_open(&other);
	p = place_of(disk_put(&other, 1, 1, 50000));
	kvdisk_close(&other.d);
	(void)snprintf(from, sizeof from, "%s/slab-%08x", other.dir, p.file);
	(void)snprintf(path, sizeof path, "%s/slab-%08x", w.dir, 0x7000U);
	assert_int_equal(rename(from, path), 0);
	world_open(&w); /* without that file, which is renamed */
	assert_int_equal(disk_stats(&w).aside, 1);
	assert_int_equal(access(path, F_OK), -1);
	(void)snprintf(path, sizeof path, "%s/slab-%08x.aside", w.dir, 0x7000U);
	assert_int_equal(access(path, F_OK), 0);
	disk_folder_remove(other.root);
	world_end(&w);
}

/* A file with a damaged header was dropped with its values: an entry for such a value goes at its next
 * lookup. */
static void test_an_entry_for_nothing_goes(void **state)
{
	struct world w;
	char path[PATH_MAX];
	uint32_t version = 0;
	(void)state;
	world_begin(&w);
	world_open(&w);
	kvdisk_place at = disk_put(&w, 1, 1, 50000);
	struct place p = place_of(at);
	(void)snprintf(path, sizeof path, "%s/slab-%08x", w.dir, p.file);
	file_flip(path, (uint64_t)p.at * KVDISK_UNIT + 33);
	for (uint32_t i = 2; i < 100; i++)
		(void)disk_put(&w, i, 1, MIB);
	assert_int_equal(access(path, F_OK), -1);
	uint64_t entries = disk_stats(&w).entries;
	assert_int_equal(disk_got(w.d, 1, at, 50000, &version), CGN_NOT_FOUND);
	assert_int_equal(disk_stats(&w).entries, entries - 1);
	assert_int_equal(disk_got(w.d, 1, at, 50000, &version), CGN_NOT_FOUND);
	assert_int_equal(disk_stats(&w).entries, entries - 1);
	world_end(&w);
}

/* Put |n| slab values and |n| small ones; replace the first of each, remove the second. */
static void some_history(struct world *w, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		(void)disk_put(w, i, 1, 40000);
		(void)disk_put(w, 1000 + i, 1, 400);
	}
	(void)disk_put(w, 0, 2, 45000);
	(void)disk_put(w, 1000, 2, 450);
	assert_true(kvdisk_remove(w->d, &(struct block_key){key_of(1).digest, 1}));
	assert_true(kvdisk_remove(w->d, &(struct block_key){key_of(1001).digest, 1001}));
}

static void check_history(struct world *w, uint32_t n, bool small_lost)
{
	disk_expect(w, 0, 2);
	expect_none(w, 1);
	for (uint32_t i = 2; i < n; i++)
		disk_expect(w, i, 1);
	expect_none(w, 1001);
	for (uint32_t i = 1000; i < 1000 + n; i++) {
		uint32_t version = 0;
		enum cgn_code c = got_now(w, i, &version);
		assert_int_equal(c, small_lost || i == 1001 ? CGN_NOT_FOUND : CGN_FINE);
		if (c == CGN_FINE)
			assert_int_equal(version, i == 1000 ? 2 : 1);
	}
}

struct damage {
	const char *folder, *prefix;
	uint64_t at; /* Byte to flip; UINT64_MAX: the file is missing. */
};
static unsigned hurt;
static char hurt_folder[PATH_MAX];

static cgn_rc hurt_one(void *user, const char *name, struct cgn_err *err)
{
	const struct damage *dm = user;
	char path[2 * PATH_MAX];
	struct stat st;
	(void)err;
	size_t n = strlen(name), k = strlen(dm->prefix);
	bool is = dm->prefix[0] == '.' ? n > k && strcmp(name + n - k, dm->prefix) == 0
				       : strncmp(name, dm->prefix, k) == 0;
	if (!is)
		return CGN_OK;
	(void)snprintf(path, sizeof path, "%s/%s", hurt_folder, name);
	hurt++;
	if (dm->at == UINT64_MAX)
		assert_int_equal(unlink(path), 0);
	else if (stat(path, &st) == 0 && st.st_size > 0)
		file_flip(path, dm->at % (uint64_t)st.st_size);
	return CGN_OK;
}

/* Move the index of a closed store from the log into tables. */
static void into_tables(const struct world *w)
{
	static const char *const names[] = {"index", "small"};
	for (size_t i = 0; i < CGN_COUNT(names); i++) {
		char path[PATH_MAX], *message = NULL;
		rocksdb_options_t *o = rocksdb_options_create();
		rocksdb_flushoptions_t *f = rocksdb_flushoptions_create();
		(void)snprintf(path, sizeof path, "%s/%s", w->dir, names[i]);
		rocksdb_t *db = rocksdb_open(o, path, &message);
		assert_non_null(db);
		rocksdb_flush(db, f, &message);
		assert_null(message);
		rocksdb_close(db);
		rocksdb_flushoptions_destroy(f);
		rocksdb_options_destroy(o);
	}
}

static void test_a_damaged_database(void **state)
{
	static const struct damage all[] = {{"index", "CURRENT", UINT64_MAX}, {"index", "MANIFEST", 20},
		{"index", "MANIFEST", UINT64_MAX}, {"index", ".sst", 100}, {"index", ".sst", UINT64_MAX},
		{"index", ".sst", 7777777}, {"small", "CURRENT", UINT64_MAX}, {"small", "MANIFEST", 20},
		{"small", ".sst", UINT64_MAX}};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(all); i++) {
		struct world w;
		world_begin(&w);
		world_open(&w);
		some_history(&w, 50);
		kvdisk_close(&w.d);
		into_tables(&w);
		(void)snprintf(hurt_folder, sizeof hurt_folder, "%s/%s", w.dir, all[i].folder);
		hurt = 0;
		assert_true(cgn_ok(dir_each(hurt_folder, hurt_one, (void *)(uintptr_t)&all[i], &w.err)));
		assert_true(hurt > 0);
		world_open(&w);
		bool of_index = strcmp(all[i].folder, "index") == 0;
		assert_int_equal(w.how.rebuilt, of_index);
		assert_int_equal(w.how.small_lost, !of_index);
		assert_true(strlen(w.how.why) > 0);
		check_history(&w, 50, !of_index);
		(void)disk_put(&w, 5000, 1, 40000);
		world_again(&w); /* As good as a new store. */
		assert_false(w.how.rebuilt || w.how.small_lost);
		check_history(&w, 50, !of_index);
		disk_expect(&w, 5000, 1);
		assert_true(disk_stats(&w).bytes <= disk_stats(&w).budget);
		world_end(&w);
	}
}

/* A flipped bit anywhere in any file: every value that is returned is a value that was put. */
/* An index that is made again from the headers has no value that was removed. */
static void test_a_new_index_finds_nothing_that_was_removed(void **state)
{
	static const struct damage lost = {"index", "CURRENT", UINT64_MAX};
	struct world w;
	struct block_key k = key_of(2);
	(void)state;
	world_begin(&w);
	world_open(&w);
	for (uint32_t i = 0; i < 4; i++)
		(void)disk_put(&w, i, 1, 50000);
	assert_true(kvdisk_remove(w.d, &k));
	kvdisk_close(&w.d);
	(void)snprintf(hurt_folder, sizeof hurt_folder, "%s/index", w.dir);
	assert_true(cgn_ok(dir_each(hurt_folder, hurt_one, (void *)(uintptr_t)&lost, &w.err)));
	world_open(&w);
	assert_true(w.how.rebuilt);
	assert_int_equal(told.found, 3);
	assert_int_equal(disk_stats(&w).entries, 3);
	expect_none(&w, 2);
	world_end(&w);
}

static void test_bits_anywhere(void **state)
{
	struct world w;
	(void)state;
	static const char *const folders[] = {"", "index", "small"};
	static const char *const prefixes[] = {"slab-", ".sst", ".log", "MANIFEST", "CURRENT"};
	uint64_t dice = 88172645463325252ULL;
	for (unsigned round = 0; round < 25; round++) {
		world_begin(&w);
		world_open(&w);
		some_history(&w, 12);
		kvdisk_close(&w.d);
		if (round % 2 == 0)
			into_tables(&w);
		(void)mix_lcg(&dice);
		struct damage dm = {.prefix = prefixes[round % 5], .at = dice >> 20};
		(void)snprintf(hurt_folder, sizeof hurt_folder, "%s/%s", w.dir,
			round % 5 == 0 ? "" : folders[1 + round / 5 % 2]);
		assert_true(cgn_ok(dir_each(hurt_folder, hurt_one, &dm, &w.err)));
		world_open(&w);
		for (uint32_t i = 0; i < 12; i++) {
			uint32_t version = 0;
			for (uint32_t k = i; k < 2000; k += 1000) {
				enum cgn_code c = got_now(&w, k, &version); /* Compares the bytes. */
				assert_true(c == CGN_FINE || c == CGN_NOT_FOUND || c == CGN_STORAGE);
				/* Removed and replaced values are marked so in their file. */
				if (c == CGN_FINE && (round % 5 == 0 || k < 1000))
					assert_true(version == (k % 1000 == 0 ? 2 : 1) && k % 1000 != 1);
			}
		}
		(void)disk_put(&w, 5000, 1, 40000);
		disk_expect(&w, 5000, 1);
		world_end(&w);
	}
}

/* ---- owners of the folder ---- */
static void test_folders_of_others(void **state)
{
	struct world w;
	char path[PATH_MAX], notes[PATH_MAX];
	struct kvdisk *second = NULL;
	(void)state;
	world_begin(&w);
	assert_int_equal(mkdir(w.dir, 0700), 0);
	path_of(path, &w, "thesis.tex");
	assert_true(cgn_ok(disk_write_file_atomic(path, CGN_STR("years of work"), 0600, &w.err)));
	assert_int_equal(kvdisk_open(&w.cfg, &w.d, &w.how, &w.err).code, CGN_STORAGE);
	assert_non_null(strstr(w.err.msg, "thesis.tex"));
	struct cgn_buf b = {0};
	assert_true(cgn_ok(disk_read_file(path, 100, &b, &w.err)) &&
		cgn_str_is(cgn_buf_view(&b), "years of work"));
	cgn_buf_fini(&b);
	assert_int_equal(unlink(path), 0);
	world_open(&w); /* An empty folder is taken. */
	assert_int_equal(kvdisk_open(&w.cfg, &second, &w.how, &w.err).code, CGN_STORAGE);
	assert_non_null(strstr(w.err.msg, "another process"));
	kvdisk_close(&w.d);
	path_of(path, &w, "cognitora-kv");
	assert_true(cgn_ok(disk_write_file_atomic(path, CGN_STR("cognitora kv store, format 2, slab 1\n"),
		0600, &w.err)));
	assert_int_equal(kvdisk_open(&w.cfg, &w.d, &w.how, &w.err).code, CGN_STORAGE);
	assert_non_null(strstr(w.err.msg, "format 2"));
	assert_true(cgn_ok(disk_write_file_atomic(path, CGN_STR("my notes"), 0600, &w.err)));
	(void)snprintf(notes, sizeof notes, "%s/more-notes", w.dir);
	assert_true(cgn_ok(disk_write_file_atomic(notes, CGN_STR("x"), 0600, &w.err)));
	assert_int_equal(kvdisk_open(&w.cfg, &w.d, &w.how, &w.err).code, CGN_STORAGE);
	assert_non_null(strstr(w.err.msg, "more-notes"));
	assert_int_equal(unlink(notes), 0); /* now everything in the folder is the store's */
	world_open(&w);
	assert_int_equal(disk_stats(&w).aside, 1);
	kvdisk_close(&w.d);
	w.cfg.dir = "/proc/cgn-kvdisk";
	assert_int_equal(kvdisk_open(&w.cfg, &w.d, &w.how, &w.err).code, CGN_STORAGE);
	assert_non_null(strstr(w.err.msg, "/proc/cgn-kvdisk"));
	world_end(&w);
}

static char from_folder[PATH_MAX], to_folder[PATH_MAX];
static unsigned slabs_moved;

static cgn_rc slab_move(void *user, const char *name, struct cgn_err *err)
{
	char from[2 * PATH_MAX], to[2 * PATH_MAX];
	(void)user;
	(void)err;
	(void)snprintf(from, sizeof from, "%s/%s", from_folder, name);
	(void)snprintf(to, sizeof to, "%s/%s", to_folder, name);
	if (strncmp(name, "slab-", 5) != 0 || access(to, F_OK) == 0)
		return CGN_OK;
	assert_int_equal(rename(from, to), 0);
	file_flip(to, 8);
	slabs_moved++;
	return CGN_OK;
}

/* Files of another store, with damaged heads, lie in the folder when the index is made again. */
static void test_a_file_of_another_store_has_no_values(void **state)
{
	struct world w;
	char path[PATH_MAX];
	(void)state;
	world_begin(&w);
	w.cfg.file_bytes = MIB;
	world_open(&w);
	for (uint32_t i = 0; i < 30; i++)
		(void)disk_put(&w, i, 1, 200000);
	kvdisk_close(&w.d);
	(void)snprintf(from_folder, sizeof from_folder, "%s/other", w.root);
	(void)snprintf(to_folder, sizeof to_folder, "%s", w.dir);
	assert_int_equal(rename(w.dir, from_folder), 0);
	world_open(&w);
	(void)disk_put(&w, 100, 1, 200000);
	kvdisk_close(&w.d);
	slabs_moved = 0;
	assert_true(cgn_ok(dir_each(from_folder, slab_move, NULL, &w.err)));
	assert_true(slabs_moved > 1);
	path_of(path, &w, "index");
	disk_folder_remove(path);
	world_open(&w);
	assert_true(w.how.rebuilt);
	for (uint32_t i = 0; i < 30; i++)
		expect_none(&w, i);
	disk_expect(&w, 100, 1);
	world_end(&w);
}

static void test_an_index_elsewhere(void **state)
{
	struct world w, other;
	char index[96];
	(void)state;
	world_begin(&w);
	(void)snprintf(index, sizeof index, "%s/index-of-it", w.root);
	w.cfg.index_dir = index;
	world_open(&w);
	some_history(&w, 20);
	world_again(&w);
	check_history(&w, 20, false);
	kvdisk_close(&w.d);
	world_begin(&other); /* The index of one store with the files of another. */
	world_open(&other);
	kvdisk_close(&other.d);
	other.cfg.index_dir = index;
	assert_int_equal(kvdisk_open(&other.cfg, &other.d, &other.how, &other.err).code, CGN_STORAGE);
	assert_non_null(strstr(other.err.msg, "another block store"));
	world_end(&other);
	disk_folder_remove(index); /* A new disk for the index: the files are still there. */
	world_open(&w);
	assert_true(w.how.rebuilt);
	check_history(&w, 20, false);
	world_end(&w);
}

/* ---- a full disk ---- */
static void test_a_full_disk(void **state)
{
	struct world w;
	kvdisk_place at;
	(void)state;
	world_begin(&w);
	world_open(&w);
	fill_up(&w, 0, 40, 512 * KIB);
	/* Less room by a smaller budget, as when other programs fill the file system. */
	uint64_t was = w.d->budget;
	w.d->budget = disk_stats(&w).bytes;
	for (uint32_t i = 100; i < 140; i++)
		(void)try_put(w.d, i, 1, 512 * KIB, &at, &w.err);
	assert_true(told.gone > 0);
	w.d->budget = was;
	(void)disk_put(&w, 200, 1, 512 * KIB);
	disk_expect(&w, 200, 1);
	world_end(&w);
}

/* A removal while no file can grow takes effect when files can grow again. */
static void test_removed_while_nothing_can_be_written(void **state)
{
	struct world w;
	struct rlimit was, none;
	kvdisk_place at;
	(void)state;
	world_begin(&w);
	world_open(&w);
	for (uint32_t i = 0; i < 40; i++)
		(void)disk_put(&w, i, 1, i % 2 == 0 ? 300 : 50000);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	none = (struct rlimit){1, was.rlim_max};
	(void)signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
	for (uint32_t i = 0; i < 20; i++) {
		struct block_key k = key_of(i);
		assert_true(kvdisk_remove(w.d, &k) || db_stuck(w.d->index));
		assert_false(cgn_ok(try_put(w.d, i, 2, 300, &at, NULL)));
	}
	assert_true(db_stuck(w.d->index));
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	kvdisk_tend(w.d);
	assert_false(db_stuck(w.d->index) || db_stuck(w.d->small));
	(void)disk_put(&w, 7, 3, 300);
	for (unsigned round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 40; i++) {
			if (i < 20 && i != 7)
				expect_none(&w, i);
			else
				disk_expect(&w, i, i == 7 ? 3 : 1);
		}
		assert_int_equal(disk_stats(&w).entries, 21);
		world_again(&w);
	}
	world_end(&w);
}

/* Values had no room, but the databases had. */
static void test_a_disk_that_has_room_again_refuses_no_more(void **state)
{
	struct world w;
	struct rlimit was, none;
	kvdisk_place at;
	(void)state;
	world_begin(&w);
	world_open(&w);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	none = (struct rlimit){MIB, was.rlim_max};
	(void)signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
	for (uint32_t i = 0; i < 20 && !disk_stats(&w).refusing; i++)
		(void)try_put(w.d, i, 1, 200000, &at, NULL);
	assert_true(disk_stats(&w).refusing);
	assert_false(db_stuck(w.d->index) || db_stuck(w.d->small));
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	kvdisk_tend(w.d);
	assert_false(disk_stats(&w).refusing);
	(void)disk_put(&w, 30, 1, 200000);
	world_end(&w);
}

/* ---- the page cache ---- */
static uint64_t cached_bytes(const char *path, size_t first)
{
	unsigned char *in = calloc(first / 4096, 1);
	uint64_t pages = 0;
	int fd = open(path, O_RDONLY);
	void *p = mmap(NULL, first, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(in != NULL && fd >= 0 && p != MAP_FAILED);
	assert_int_equal(mincore(p, first, in), 0);
	for (size_t i = 0; i < first / 4096; i++)
		pages += in[i] & 1;
	assert_int_equal(munmap(p, first), 0);
	close(fd);
	free(in);
	return pages * 4096;
}

/* A long file is written to the medium as it grows: bytes that were written a while ago are not in the page
 * cache, where engines have their weights. */
static void test_a_file_leaves_the_page_cache_as_it_grows(void **state)
{
	struct world w;
	char path[PATH_MAX];
	struct statfs fs;
	uint32_t i = 1;
	(void)state;
	if (statfs("/tmp", &fs) != 0 || (fs.f_type != EXT4_SUPER_MAGIC && fs.f_type != XFS_SUPER_MAGIC)) {
		print_message("/tmp is not on ext4 or XFS: the page cache is not looked at\n");
		skip();
	}
	world_begin(&w);
	disk_folder_remove(w.root);
	disk_folder_make_in(w.root, "/tmp", "kvdisk");
	(void)snprintf(w.dir, sizeof w.dir, "%s/kv", w.root);
	w.cfg.budget = 4096 * MIB;
	w.cfg.file_bytes = 256 * MIB;
	world_open(&w);
	struct place p = place_of(disk_put(&w, i, 1, MIB));
	(void)snprintf(path, sizeof path, "%s/slab-%08x", w.dir, p.file);
	for (unsigned tries = 0; tries < 25 && (tries < 4 || cached_bytes(path, 16 * MIB) > 0); tries++) {
		for (unsigned n = 0; n < 8; n++)
			(void)disk_put(&w, ++i, 1, MIB);
		(void)nanosleep(&(struct timespec){.tv_nsec = tries < 4 ? 0 : 200000000}, NULL);
	}
	assert_int_equal(cached_bytes(path, 16 * MIB), 0);
	disk_expect(&w, 1, 1);
	world_end(&w);
}

/* ---- the folders of these tests ---- */
static void test_the_folder_of_a_killed_test_goes(void **state)
{
	char(*left)[64] = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), mine[64],
	next[64];
	(void)state;
	assert_true(left != MAP_FAILED);
	disk_folder_make(mine, "mine");
	pid_t child = fork();
	if (child == 0) {
		disk_folder_make(*left, "left");
		(void)raise(SIGKILL);
	}
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(access(*left, F_OK), 0);
	disk_folder_make(next, "next");
	assert_int_equal(access(*left, F_OK), -1);
	assert_int_equal(access(mine, F_OK), 0);
	disk_folder_remove(mine);
	disk_folder_remove(next);
	(void)munmap(left, 64);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_file_leaves_the_page_cache_as_it_grows),
		cmocka_unit_test(test_the_folder_of_a_killed_test_goes),
		cmocka_unit_test(test_what_is_put_is_got),
		cmocka_unit_test(test_a_value_in_many_pieces),
		cmocka_unit_test(test_replaced_and_removed),
		cmocka_unit_test(test_what_is_not_wanted_goes),
		cmocka_unit_test(test_what_is_not_wanted_never_comes_back),
		cmocka_unit_test(test_a_rebuild_that_is_ended_goes_on),
		cmocka_unit_test(test_a_start_that_was_killed_is_finished),
		cmocka_unit_test(test_a_place_is_bound_to_its_key),
		cmocka_unit_test(test_the_oldest_goes),
		cmocka_unit_test(test_what_was_written_again_outlives_its_old_file),
		cmocka_unit_test(test_small_ones_go_too),
		cmocka_unit_test(test_what_is_worth_it_is_carried),
		cmocka_unit_test(test_what_is_carried_is_synced_first),
		cmocka_unit_test(test_the_name_of_a_new_file_is_synced),
		cmocka_unit_test(test_small_ones_that_are_worth_it_are_carried),
		cmocka_unit_test(test_pinned_stays),
		cmocka_unit_test(test_too_large),
		cmocka_unit_test(test_time_to_live),
		cmocka_unit_test(test_a_clock_that_jumps),
		cmocka_unit_test(test_a_flipped_bit_is_a_miss),
		cmocka_unit_test(test_reads_past_the_page_cache),
		cmocka_unit_test(test_a_missing_or_short_file),
		cmocka_unit_test(test_a_damaged_head_of_a_file),
		cmocka_unit_test(test_an_entry_for_nothing_goes),
		cmocka_unit_test(test_a_damaged_database),
		cmocka_unit_test(test_a_new_index_finds_nothing_that_was_removed),
		cmocka_unit_test(test_bits_anywhere),
		cmocka_unit_test(test_folders_of_others),
		cmocka_unit_test(test_a_file_of_another_store_has_no_values),
		cmocka_unit_test(test_an_index_elsewhere),
		cmocka_unit_test(test_a_full_disk),
		cmocka_unit_test(test_removed_while_nothing_can_be_written),
		cmocka_unit_test(test_a_disk_that_has_room_again_refuses_no_more),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
