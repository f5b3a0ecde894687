/* SPDX-License-Identifier: Apache-2.0 */
/* kvclient: the client with a scripted store, on one loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <sys/mman.h>

#include "io/net/net/packet.h"
#include "joint/kv/kvclient/kvclient.h"
#include "loop_until.h"
#include "policy/kv/kvbulk/kvbulk.h"

#define ARENA ((size_t)4 << 20)

enum mood {
	MOOD_GOOD,
	MOOD_SILENT,     /* Answers nothing but HELLO. */
	MOOD_OLD,        /* Speaks another version. */
	MOOD_OWN,        /* Sends each value with a descriptor of its own. */
	MOOD_UNSEALED,   /* Lends an arena that could be truncated. */
	MOOD_WRONG_ONCE, /* Sends a wrong checksum until the client asks the store to verify. */
	MOOD_WRONG,      /* Always sends a wrong checksum. */
	MOOD_OUTSIDE,    /* Lends values beyond the arena. */
	MOOD_FEW,        /* Sends too few infos. */
	MOOD_GARBAGE,    /* Sends bytes that do not make messages. */
	MOOD_REFUSING,   /* Answers FAILED to everything. */
	MOOD_ONE,        /* Lends one value at a time. */
	MOOD_TURNED,     /* Lends one value at a time, and reads the second request before the first. */
};

struct world {
	struct cgn_loop *l;
	struct packet_listener *ln;
	struct packet_conn *conn; /* Connection of the store. */
	char dir[64], uds[80], bulk[96];
	enum mood mood;
	int arena;
	uint8_t *mem;
	uint64_t value_bytes, lease_ms;
	cgn_nsec until; /* The waiting test waits for this time of the loop. */
	struct kvclient *c;
	/* Messages that the store received. */
	unsigned hellos, lookups, gets, verified, puts, removes, watches, stops;
	unsigned releases, code_of_too_much;
	uint64_t released[64], n_released, lent, put_bytes, last_id;
	bool put_had_fd, put_had_sum;
	char put_first[8];
	/* Counts of the client's callbacks. */
	unsigned ready, away, done, want;
	enum cgn_code code;
	char why[400];
	struct block_info infos[KVCLIENT_MAX_KEYS];
	size_t n;
	uint32_t removed;
	struct kvclient_lease *lease;
	unsigned resets, changes, synced;
	bool free_when_done;
};

/* ---- the store ---- */
static void store_tell(struct world *w, const struct kvbulk_msg *m, const void *items, size_t n, int fd)
{
	struct cgn_buf b = {0};
	kvbulk_write(m, &b);
	cgn_buf_add(&b, items, n);
	const struct iovec iov = {b.p, b.n};
	packet_send(w->conn, &iov, 1, fd);
	cgn_buf_fini(&b);
}

static void store_welcome(struct world *w, const struct kvbulk_msg *m)
{
	struct kvbulk_msg r = {.type = KVBULK_WELCOME,
		.id = m->id,
		.version = w->mood == MOOD_OLD ? 0 : KVBULK_VERSION,
		.terms = {.max_calls = 64,
			.max_leases = 64,
			.max_inline = 1000,
			.lease_bytes = ARENA,
			.lease_ms = w->lease_ms}};
	int fd = w->mood == MOOD_OWN ? -1 : w->arena;
	if (w->mood == MOOD_UNSEALED) {
		fd = memfd_create("u", MFD_CLOEXEC);
		assert_int_equal(ftruncate(fd, (off_t)ARENA), 0);
	}
	r.terms.arena_bytes = fd >= 0 ? ARENA : 0;
	store_tell(w, &r, NULL, 0, fd);
	if (w->mood == MOOD_UNSEALED)
		close(fd);
}

static void store_send_infos(struct world *w, const struct kvbulk_msg *m)
{
	struct cgn_buf items = {0};
	size_t n = m->type == KVBULK_LOOKUP ? m->count : 1;
	n -= w->mood == MOOD_FEW;
	for (size_t i = 0; i < n; i++) {
		struct block_info info = {.size = m->info.size, .tiers = BLOCK_TIER_BIT(BLOCK_RAM)};
		if (m->type == KVBULK_LOOKUP)
			info.size = kvbulk_key(m, i).segment;
		kvbulk_add_info(&items, &info);
	}
	const struct kvbulk_msg r = {.type = KVBULK_INFOS, .id = m->id, .count = (uint16_t)n};
	store_tell(w, &r, items.p, items.n, -1);
	cgn_buf_fini(&items);
}

/* Send a value: the arena's first bytes, in two pieces in reverse order. */
static void store_send_value(struct world *w, const struct kvbulk_msg *m)
{
	struct cgn_buf items = {0}, bytes = {0};
	uint64_t half = w->value_bytes / 2, rest = w->value_bytes - half;
	int fd = -1;
	struct kvbulk_msg r = {.type = KVBULK_VALUE,
		.id = m->id,
		.lease = ++w->lent,
		.model = CGN_STR("mo"),
		.name = CGN_STR("na"),
		.info = {.size = w->value_bytes}};
	if (w->mood == MOOD_OWN) {
		fd = memfd_create("o", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		assert_int_equal(write(fd, w->mem, w->value_bytes), (ssize_t)w->value_bytes);
		assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
		cgn_buf_add(&bytes, w->mem, w->value_bytes);
		kvbulk_add_extent(&items, (struct kvbulk_extent){0, w->value_bytes});
		r.flags = KVBULK_OWN;
		r.count = 1;
	} else if (w->value_bytes > 0) {
		cgn_buf_add(&bytes, w->mem + half, rest);
		cgn_buf_add(&bytes, w->mem, half);
		kvbulk_add_extent(&items,
			(struct kvbulk_extent){w->mood == MOOD_OUTSIDE ? ARENA - rest + 1 : half, rest});
		kvbulk_add_extent(&items, (struct kvbulk_extent){0, half});
		r.count = 2;
	}
	r.info.checksum = XXH3_64bits(bytes.p != NULL ? bytes.p : "", bytes.n);
	if (w->mood == MOOD_WRONG || (w->mood == MOOD_WRONG_ONCE && (m->flags & KVBULK_VERIFY) == 0))
		r.info.checksum ^= 1;
	store_tell(w, &r, items.p, items.n, fd);
	if (fd >= 0)
		close(fd);
	cgn_buf_fini(&items);
	cgn_buf_fini(&bytes);
}

static void take_put(struct world *w, const struct kvbulk_msg *m, int fd)
{
	w->puts++;
	w->put_had_fd = fd >= 0;
	w->put_had_sum = (m->flags & KVBULK_CHECKSUM) != 0;
	w->put_bytes = m->info.size;
	if (fd >= 0)
		assert_int_equal(pread(fd, w->put_first, 4, (off_t)m->offset), 4);
	else
		memcpy(w->put_first, m->text.p, m->text.n < 4 ? m->text.n : 4);
	if (w->put_had_sum && fd < 0)
		assert_int_equal(m->info.checksum, XXH3_64bits(m->text.p, m->text.n));
	store_send_infos(w, m);
}

static void store_send_changes(struct world *w, const struct kvbulk_msg *m)
{
	struct cgn_buf items = {0};
	w->stops += (m->flags & KVBULK_STOP) != 0;
	if ((m->flags & KVBULK_STOP) != 0)
		return;
	w->watches++;
	for (uint32_t i = 0; i < 600; i++)
		kvbulk_add_change(&items,
			&(struct block_change){.key = {.segment = i}, .tiers = 2, .size = i});
	const struct kvbulk_msg r = {.type = KVBULK_CHANGES,
		.id = m->id,
		.count = 600,
		.flags = KVBULK_RESET | KVBULK_SYNCED};
	store_tell(w, &r, items.p, items.n, -1);
	const struct kvbulk_msg stray = {.type = KVBULK_CHANGES,
		.id = m->id + 7,
		.count = 0,
		.flags = KVBULK_RESET};
	store_tell(w, &stray, NULL, 0, -1); /* An event of a watch that ended: no callback reports it. */
	cgn_buf_fini(&items);
}

static void too_much(struct world *w, uint64_t id)
{
	store_tell(w,
		&(struct kvbulk_msg){.type = KVBULK_FAILED,
			.id = id,
			.number = w->code_of_too_much,
			.text = CGN_STR("too much is lent")},
		NULL, 0, -1);
}

static void store_serve(struct world *w, const struct kvbulk_msg *m, int fd)
{
	struct kvbulk_msg r = {.type = KVBULK_COUNT, .id = m->id, .number = m->count};
	w->lookups += m->type == KVBULK_LOOKUP;
	w->gets += m->type == KVBULK_GET;
	w->verified += m->type == KVBULK_GET && (m->flags & KVBULK_VERIFY) != 0;
	w->removes += m->type == KVBULK_REMOVE;
	if (m->type == KVBULK_RELEASE || m->type == KVBULK_GET)
		for (size_t i = 0; i < m->count; i++)
			w->released[w->n_released++] = kvbulk_lease(m, i);
	w->releases += m->type == KVBULK_RELEASE;
	if (m->type == KVBULK_RELEASE)
		return;
	if (w->mood == MOOD_SILENT)
		w->last_id = m->id;
	else if (w->mood == MOOD_REFUSING && m->type != KVBULK_WATCH)
		store_tell(w,
			&(struct kvbulk_msg){.type = KVBULK_FAILED,
				.id = m->id,
				.number = 5,
				.text = CGN_STR("not here")},
			NULL, 0, -1);
	else if (m->type == KVBULK_GET && w->mood == MOOD_TURNED && w->gets == 1)
		w->last_id = m->id;
	else if (m->type == KVBULK_GET && w->mood == MOOD_TURNED && w->gets == 2) {
		store_send_value(w, m);
		too_much(w, w->last_id);
	} else if (m->type == KVBULK_GET && (w->mood == MOOD_ONE || w->mood == MOOD_TURNED) &&
		w->lent > w->n_released)
		too_much(w, m->id);
	else if (m->type == KVBULK_GET)
		store_send_value(w, m);
	else if (m->type == KVBULK_PUT)
		take_put(w, m, fd);
	else if (m->type == KVBULK_WATCH)
		store_send_changes(w, m);
	else if (m->type == KVBULK_REMOVE)
		store_tell(w, &r, NULL, 0, -1);
	else
		store_send_infos(w, m);
}

static void on_packet(struct packet_conn *c, void *user, const uint8_t *p, size_t n, int *fd)
{
	struct world *w = user;
	struct kvbulk_msg m;
	const struct iovec noise = {(char[]){"hello, I am a web server"}, 24};
	w->conn = c;
	assert_true(cgn_ok(kvbulk_read((struct cgn_str){(const char *)p, n}, &m, NULL)));
	if (w->mood == MOOD_GARBAGE)
		packet_send(c, &noise, 1, -1);
	else if (m.type == KVBULK_HELLO)
		store_welcome(w, &m);
	else if (m.type != KVBULK_HELLO)
		store_serve(w, &m, *fd);
	w->hellos += m.type == KVBULK_HELLO;
}

static void on_close(struct packet_conn *c, void *user, const struct cgn_err *why)
{
	struct world *w = user;
	(void)why;
	if (w->conn == c)
		w->conn = NULL;
}

static void on_accept(void *user, struct packet_conn *c)
{
	static const struct packet_ops ops = {.on_packet = on_packet, .on_close = on_close};
	((struct world *)user)->conn = c;
	packet_take(c, &ops, user);
}

/* ---- the client's side ---- */
static void on_state(void *user, bool ready, const struct cgn_err *why)
{
	struct world *w = user;
	w->ready += ready;
	w->away += !ready;
	if (!ready)
		(void)cgn_str_copyz(w->why, sizeof w->why, cgn_str_of(why->msg));
}

static void on_done(void *user, const struct kvclient_answer *a)
{
	struct world *w = user;
	w->done++;
	w->code = a->err->code;
	(void)cgn_str_copyz(w->why, sizeof w->why, cgn_str_of(a->err->msg));
	w->n = a->n;
	w->removed = a->removed;
	w->lease = a->lease;
	if (a->n > 0)
		memcpy(w->infos, a->infos, a->n * sizeof *a->infos);
	if (w->free_when_done)
		kvclient_free(&w->c);
}

static void on_changes(void *user, bool reset, const struct block_change *list, size_t n, bool synced)
{
	struct world *w = user;
	assert_true(n == 0 || list[0].size == w->changes % 600);
	w->resets += reset;
	w->changes += (unsigned)n;
	w->synced += synced;
}

static bool is_ready(struct world *w)
{
	return w->ready >= w->want;
}
static bool is_away(struct world *w)
{
	return w->away >= w->want;
}
static bool is_done(struct world *w)
{
	return w->done >= w->want;
}
static bool all_released(struct world *w)
{
	return w->n_released >= w->want;
}
static bool is_synced(struct world *w)
{
	return w->synced >= w->want;
}
static bool store_heard(struct world *w)
{
	return w->last_id != 0;
}

static void wait_for(struct world *w, bool (*what)(struct world *), unsigned want)
{
	w->want = want;
	loop_until(w->l, what, w);
}

static void open_store(struct world *w)
{
	const struct packet_listen_cfg cfg = {.path = w->bulk, .max_queue = 1 << 20};
	assert_true(cgn_ok(packet_listen(w->l, &cfg, on_accept, w, &w->ln, NULL)));
}

static struct world *client_setup(enum mood mood)
{
	struct world *w = calloc(1, sizeof *w);
	w->mood = mood;
	w->value_bytes = 100000;
	w->lease_ms = 60000;
	(void)snprintf(w->dir, sizeof w->dir, "/tmp/cgn-kvclient-XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	(void)snprintf(w->uds, sizeof w->uds, "%s/s", w->dir);
	(void)snprintf(w->bulk, sizeof w->bulk, "%s.bulk", w->uds);
	w->arena = memfd_create("a", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(w->arena, (off_t)ARENA), 0);
	assert_int_equal(fcntl(w->arena, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	w->mem = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, w->arena, 0);
	for (size_t i = 0; i < ARENA; i++)
		w->mem[i] = (uint8_t)(i * 7 + i / 251);
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	open_store(w);
	const struct kvclient_cfg cfg = {.uds = w->uds,
		.timeout = mood == MOOD_SILENT ? 100 * CGN_MSEC : 0,
		.on_state = on_state,
		.user = w};
	w->c = kvclient_new(w->l, &cfg);
	assert_false(kvclient_ready(w->c));
	return w;
}

static struct world *setup_ready(enum mood mood)
{
	struct world *w = client_setup(mood);
	wait_for(w, is_ready, 1);
	assert_true(kvclient_ready(w->c));
	return w;
}

static void client_teardown(struct world *w)
{
	kvclient_free(&w->c);
	kvclient_lease_release(&w->lease);
	packet_close(&w->conn);
	packet_listener_close(&w->ln);
	cgn_loop_stop(w->l);
	cgn_loop_run(w->l);
	cgn_loop_free(&w->l);
	assert_int_equal(munmap(w->mem, ARENA), 0);
	close(w->arena);
	assert_int_equal(rmdir(w->dir), 0);
	free(w);
}

static const struct block_key key = {.digest = {{1}}, .segment = 9};

static void client_get(struct world *w, struct kvclient_call **out)
{
	assert_true(cgn_ok(
		kvclient_get(w->c, &key, KVCLIENT_HERE_ONLY, (struct cgn_str){0}, on_done, w, out, NULL)));
	assert_null(w->lease); /* Never inside the call. */
}

static void lookups_of_any_length(void **state)
{
	static const size_t lengths[] = {1, 2, 1279, 1280, 1281, 2560, 4095, 4096};
	struct world *w = setup_ready(MOOD_GOOD);
	struct block_key *keys = calloc(KVCLIENT_MAX_KEYS, sizeof *keys);
	(void)state;
	for (uint32_t i = 0; i < KVCLIENT_MAX_KEYS; i++)
		keys[i].segment = i;
	for (unsigned i = 0; i < CGN_COUNT(lengths); i++) {
		w->lookups = 0;
		assert_true(cgn_ok(kvclient_lookup(w->c, keys, lengths[i], true, (struct cgn_str){0}, on_done,
			w, NULL, NULL)));
		wait_for(w, is_done, i + 1);
		assert_int_equal(w->n, lengths[i]);
		assert_int_equal(w->lookups, (lengths[i] + 1279) / 1280);
		for (size_t k = 0; k < w->n; k++)
			assert_int_equal(w->infos[k].size, k);
	}
	assert_int_equal(kvclient_lookup(w->c, keys, 4097, false, (struct cgn_str){0}, on_done, w, NULL, NULL)
				 .code,
		CGN_INVALID);
	assert_int_equal(kvclient_lookup(w->c, keys, 0, false, (struct cgn_str){0}, on_done, w, NULL, NULL)
				 .code,
		CGN_INVALID);
	assert_true(cgn_ok(kvclient_remove(w->c, keys, 3000, on_done, w, NULL, NULL)));
	wait_for(w, is_done, CGN_COUNT(lengths) + 1);
	assert_int_equal(w->removed, 3000);
	assert_int_equal(w->removes, 3);
	free(keys);
	client_teardown(w);
}

static void check_lease(struct world *w)
{
	size_t n, half = w->value_bytes / 2;
	const struct iovec *iov = kvclient_lease_iov(w->lease, &n);
	assert_int_equal(n, w->mood == MOOD_OWN ? 1 : 2);
	assert_memory_equal(iov[0].iov_base, w->mem + (n == 2 ? half : 0), iov[0].iov_len);
	assert_int_equal(kvclient_lease_info(w->lease)->size, w->value_bytes);
	assert_false(kvclient_lease_is_stale(w->lease));
}

static void a_value_is_lent_and_given_back(void **state)
{
	static const enum mood moods[] = {MOOD_GOOD, MOOD_OWN, MOOD_WRONG_ONCE};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(moods); i++) {
		struct world *w = setup_ready(moods[i]);
		unsigned asked = moods[i] == MOOD_WRONG_ONCE ? 2 : 1;
		client_get(w, NULL);
		wait_for(w, is_done, 1);
		assert_int_equal(w->code, CGN_FINE);
		check_lease(w);
		assert_int_equal(w->gets, asked);
		assert_int_equal(w->verified, asked - 1);
		kvclient_lease_release(&w->lease);
		assert_null(w->lease);
		wait_for(w, all_released, asked);
		assert_int_equal(w->released[asked - 1], asked);
		client_teardown(w);
	}
}

static void the_next_get_takes_the_last_lease_back(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	(void)state;
	client_get(w, NULL);
	wait_for(w, is_done, 1);
	kvclient_lease_release(&w->lease);
	client_get(w, NULL);
	wait_for(w, is_done, 2);
	check_lease(w);
	assert_int_equal(w->n_released, 1);
	assert_int_equal(w->releases, 0); /* The releases have no packet of their own. */
	client_teardown(w);
}

static void a_long_value_is_summed_on_the_pool(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	struct kvclient_call *call = NULL;
	(void)state;
	w->value_bytes = ARENA;
	client_get(w, NULL);
	wait_for(w, is_done, 1);
	check_lease(w);
	kvclient_lease_release(&w->lease);
	client_get(w, &call); /* Cancelled at any point, the call gives its lease back. */
	kvclient_call_cancel(&call);
	assert_null(call);
	wait_for(w, all_released, 2);
	assert_int_equal(w->done, 1);
	client_teardown(w);
}

static void no_bytes_are_a_value_too(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	size_t n = 1;
	(void)state;
	w->value_bytes = 0;
	client_get(w, NULL);
	wait_for(w, is_done, 1);
	assert_int_equal(w->code, CGN_FINE);
	(void)kvclient_lease_iov(w->lease, &n);
	assert_int_equal(n, 0);
	client_teardown(w);
}

static void a_wrong_value_is_never_given_out(void **state)
{
	static const struct {
		enum mood mood;
		enum cgn_code code;
		const char *why;
	} rows[] = {{MOOD_WRONG, CGN_STORAGE, "checksum"}, {MOOD_OUTSIDE, CGN_BAD_GATEWAY, "outside"},
		{MOOD_REFUSING, CGN_NOT_FOUND, "not here"}};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct world *w = setup_ready(rows[i].mood);
		client_get(w, NULL);
		wait_for(w, is_done, 1);
		assert_int_equal(w->code, rows[i].code);
		assert_non_null(strstr(w->why, rows[i].why));
		assert_null(w->lease);
		if (rows[i].mood != MOOD_REFUSING)
			wait_for(w, all_released, (unsigned)w->lent);
		assert_true(kvclient_ready(w->c));
		client_teardown(w);
	}
}

static void a_store_that_is_none_is_left_alone(void **state)
{
	static const enum mood moods[] = {MOOD_OLD, MOOD_GARBAGE, MOOD_UNSEALED};
	static const char *const why[] = {"version 0", "ends it", "could take away"};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(moods); i++) {
		struct world *w = client_setup(moods[i]);
		wait_for(w, is_away, 1);
		assert_non_null(strstr(w->why, why[i]));
		assert_false(kvclient_ready(w->c));
		struct cgn_err err;
		assert_int_equal(kvclient_get(w->c, &key, KVCLIENT_HERE_ONLY, (struct cgn_str){0}, on_done, w,
					 NULL, &err)
					 .code,
			CGN_UNAVAILABLE);
		assert_non_null(strstr(err.msg, w->bulk));
		w->mood = MOOD_GOOD; /* The client retries by itself. */
		wait_for(w, is_ready, 1);
		assert_int_equal(w->away, 1);
		client_teardown(w);
	}
}

static void nonsense_ends_the_connection(void **state)
{
	struct world *w = setup_ready(MOOD_FEW);
	(void)state;
	assert_true(
		cgn_ok(kvclient_lookup(w->c, &key, 1, false, (struct cgn_str){0}, on_done, w, NULL, NULL)));
	assert_true(
		cgn_ok(kvclient_lookup(w->c, &key, 1, false, (struct cgn_str){0}, on_done, w, NULL, NULL)));
	wait_for(w, is_done, 2);
	assert_int_equal(w->code, CGN_UNAVAILABLE);
	assert_int_equal(w->away, 1);
	w->mood = MOOD_GOOD;
	wait_for(w, is_ready, 2);
	client_teardown(w);
}

static void when_the_store_dies(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	(void)state;
	client_get(w, NULL);
	wait_for(w, is_done, 1);
	struct kvclient_lease *lease = w->lease;
	w->lease = NULL;
	w->mood = MOOD_SILENT;
	for (unsigned i = 0; i < 5; i++)
		client_get(w, NULL);
	wait_for(w, store_heard, 1);
	packet_close(&w->conn);
	packet_listener_close(&w->ln);
	wait_for(w, is_away, 1);
	assert_int_equal(w->done, 6);
	assert_int_equal(w->code, CGN_UNAVAILABLE);
	assert_true(kvclient_lease_is_stale(lease));
	size_t n;
	const struct iovec *iov = kvclient_lease_iov(lease, &n);
	assert_memory_equal(iov[1].iov_base, w->mem, iov[1].iov_len); /* The mapping is still readable. */
	w->mood = MOOD_GOOD;
	open_store(w);
	wait_for(w, is_ready, 2);
	kvclient_lease_release(&lease); /* The new store gets no release of the old lease. */
	client_get(w, NULL);
	wait_for(w, is_done, 7);
	check_lease(w);
	assert_int_equal(w->n_released, 0);
	client_teardown(w);
}

static void no_callback_runs_after_free(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	(void)state;
	for (unsigned i = 0; i < 3; i++)
		client_get(w, NULL);
	w->free_when_done = true;
	wait_for(w, is_done, 1);
	assert_null(w->c);
	size_t n;
	(void)kvclient_lease_iov(w->lease, &n); /* The lease stays valid. */
	assert_true(kvclient_lease_is_stale(w->lease));
	w->free_when_done = false;
	client_teardown(w);
}

static void a_call_has_its_deadline(void **state)
{
	struct world *w = setup_ready(MOOD_SILENT);
	(void)state;
	client_get(w, NULL);
	client_get(w, NULL);
	wait_for(w, is_done, 2);
	assert_int_equal(w->code, CGN_DEADLINE);
	w->mood = MOOD_GOOD; /* The answer comes late: its lease is given back. */
	store_send_value(w, &(struct kvbulk_msg){.id = w->last_id});
	wait_for(w, all_released, 1);
	assert_int_equal(w->done, 2);
	assert_true(kvclient_ready(w->c));
	client_teardown(w);
}

static void there_are_only_so_many_calls(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	struct kvclient_call *one = NULL;
	struct cgn_err err;
	(void)state;
	w->mood = MOOD_SILENT;
	for (unsigned i = 0; i < KVCLIENT_MAX_CALLS; i++)
		client_get(w, &one);
	assert_int_equal(kvclient_get(w->c, &key, KVCLIENT_HERE_ONLY, (struct cgn_str){0}, on_done, w, NULL,
				 &err)
				 .code,
		CGN_OVERLOADED);
	kvclient_call_cancel(&one);
	client_get(w, NULL);
	assert_int_equal(w->done, 0);
	client_teardown(w);
}

/* A store that reads nothing: calls are refused before the queue ends the connection. */
static void what_waits_to_be_sent_is_bounded(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	struct block_key *keys = calloc(KVCLIENT_MAX_KEYS, sizeof *keys);
	struct cgn_err err;
	unsigned n = 0;
	(void)state;
	packet_pause(w->conn);
	while (n < KVCLIENT_MAX_CALLS &&
		cgn_ok(kvclient_remove(w->c, keys, KVCLIENT_MAX_KEYS, on_done, w, NULL, &err)))
		n++;
	assert_true(n > 40 && n < 100);
	assert_non_null(strstr(err.msg, "does not keep up"));
	packet_resume(w->conn);
	wait_for(w, is_done, n);
	assert_int_equal(w->code, CGN_FINE);
	assert_true(kvclient_ready(w->c));
	free(keys);
	client_teardown(w);
}

static void values_go_in_by_the_shorter_way(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	struct iovec iov[2] = {{w->mem, 500}, {w->mem + 500, 500}};
	struct kvclient_source from = {.iov = iov, .n_iov = 2};
	struct block_meta meta = {.model = CGN_STR("m"), .tokens = 16};
	(void)state;
	assert_true(cgn_ok(kvclient_put(w->c, &key, &meta, &from, false, on_done, w, NULL, NULL)));
	wait_for(w, is_done, 1);
	assert_true(w->n == 1 && w->infos[0].size == 1000 && w->put_had_sum && !w->put_had_fd);
	iov[1].iov_len++; /* More than this store accepts in a message. */
	assert_true(cgn_ok(kvclient_put(w->c, &key, &meta, &from, false, on_done, w, NULL, NULL)));
	wait_for(w, is_done, 2);
	assert_true(w->put_bytes == 1001 && w->put_had_sum && w->put_had_fd);
	assert_memory_equal(w->put_first, w->mem, 4);
	from = (struct kvclient_source){.fd = w->arena, .offset = 65537, .length = 70000};
	assert_true(cgn_ok(kvclient_put(w->c, &key, &meta, &from, true, on_done, w, NULL, NULL)));
	wait_for(w, is_done, 3);
	assert_true(w->put_bytes == 70000 && !w->put_had_sum && w->put_had_fd);
	assert_memory_equal(w->put_first, w->mem + 65537, 4);
	from.length = BLOCK_MAX_BYTES + 1;
	assert_int_equal(kvclient_put(w->c, &key, &meta, &from, true, on_done, w, NULL, NULL).code,
		CGN_INVALID);
	meta.model.n = BLOCK_MAX_MODEL + 1;
	from.length = 1;
	assert_int_equal(kvclient_put(w->c, &key, &meta, &from, true, on_done, w, NULL, NULL).code,
		CGN_INVALID);
	client_teardown(w);
}

/* ---- pieces ---- */

static void key_of_piece(void *user, size_t i, struct block_key *out)
{
	(void)user;
	*out = (struct block_key){.segment = (uint32_t)i};
}

static struct kvclient_series *series_run(struct world *w, size_t n)
{
	const struct kvclient_series_cfg cfg = {.n = n,
		.key = key_of_piece,
		.worth_ms = KVCLIENT_HERE_ONLY,
		.done = on_done,
		.user = w};
	struct kvclient_series *s = NULL;
	assert_true(cgn_ok(kvclient_series_new(w->c, &cfg, &s, NULL)));
	assert_int_equal(w->done, 0); /* Never inside the call. */
	return s;
}

static bool so_many_were_asked_for(struct world *w)
{
	return w->gets >= w->want;
}

static void pieces_come_in_order_and_ahead(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	(void)state;
	struct kvclient_series *s = series_run(w, 10);
	for (unsigned i = 1; i <= 10; i++) {
		wait_for(w, is_done, i);
		assert_int_equal(w->code, CGN_FINE);
		check_lease(w);
		unsigned ahead = i + KVCLIENT_SERIES_AHEAD - 1;
		wait_for(w, so_many_were_asked_for, ahead < 10 ? ahead : 10);
		for (unsigned turns = 0; turns < 20; turns++) /* No further call starts. */
			wait_for(w, so_many_were_asked_for, 0);
		assert_int_equal(w->gets, ahead < 10 ? ahead : 10);
		assert_int_equal(w->done, i); /* The next call waits until it is asked for. */
		kvclient_lease_release(&w->lease);
		if (i < 10)
			kvclient_series_next(s);
		assert_int_equal(w->done, i);
	}
	kvclient_series_free(&s);
	wait_for(w, all_released, 10);
	client_teardown(w);
}

static void each_in_its_turn(unsigned code)
{
	struct world *w = setup_ready(MOOD_ONE);
	w->code_of_too_much = code;
	struct kvclient_series *s = series_run(w, 7);
	for (unsigned i = 1; i <= 7; i++) {
		wait_for(w, is_done, i);
		assert_int_equal(w->code, CGN_FINE);
		check_lease(w);
		for (unsigned turns = 0; turns < 20; turns++) /* The calls ahead were refused by then. */
			wait_for(w, so_many_were_asked_for, 0);
		kvclient_lease_release(&w->lease);
		if (i < 7)
			kvclient_series_next(s);
	}
	assert_true(w->lent == 7 && w->gets > 7);
	kvclient_series_free(&s);
	client_teardown(w);
}

static bool time_has_come(struct world *w)
{
	return cgn_loop_now(w->l) >= w->until;
}

/* The store takes memory back when a lease has ended: a piece that waited so long is requested again. */
static void a_piece_that_waited_too_long_is_asked_for_again(void **state)
{
	struct world *w = client_setup(MOOD_GOOD);
	const struct block_key any = {.segment = 99};
	(void)state;
	w->lease_ms = 1;
	w->value_bytes = 1000;
	wait_for(w, is_ready, 1);
	struct kvclient_series *s = series_run(w, KVCLIENT_SERIES_AHEAD);
	wait_for(w, is_done, 1);
	kvclient_lease_release(&w->lease);
	wait_for(w, so_many_were_asked_for, KVCLIENT_SERIES_AHEAD);
	/* The answer to this call comes behind all pieces. */
	assert_true(cgn_ok(kvclient_remove(w->c, &any, 1, on_done, w, NULL, NULL)));
	wait_for(w, is_done, 2);
	w->until = cgn_loop_now(w->l) + 2 * CGN_MSEC;
	wait_for(w, time_has_come, 0);
	for (unsigned i = 1; i < KVCLIENT_SERIES_AHEAD; i++) {
		kvclient_series_next(s);
		wait_for(w, is_done, i + 2);
		assert_int_equal(w->code, CGN_FINE);
		assert_int_equal(w->gets, KVCLIENT_SERIES_AHEAD + i);
		kvclient_lease_release(&w->lease);
	}
	kvclient_series_free(&s);
	client_teardown(w);
}

static void what_could_not_be_lent_ahead_is_asked_for_in_its_turn(void **state)
{
	(void)state;
	each_in_its_turn(8);
	each_in_its_turn(5); /* The timeout would pass, with the calls ahead in flight. */
}

static void what_came_ahead_gives_way(void **state)
{
	struct world *w = setup_ready(MOOD_TURNED);
	(void)state;
	w->code_of_too_much = 8;
	struct kvclient_series *s = series_run(w, 6);
	for (unsigned i = 1; i <= 6; i++) {
		wait_for(w, is_done, i);
		assert_int_equal(w->code, CGN_FINE);
		check_lease(w);
		kvclient_lease_release(&w->lease);
		if (i < 6)
			kvclient_series_next(s);
	}
	assert_int_equal(w->lent, 7); /* The second value was lent twice. */
	assert_int_equal(w->gets, KVCLIENT_SERIES_AHEAD + 6);
	kvclient_series_free(&s);
	wait_for(w, all_released, 7);
	client_teardown(w);
}

static void a_series_that_is_left_gives_back_what_came(void **state)
{
	(void)state;
	for (unsigned early = 0; early < 2; early++) {
		struct world *w = setup_ready(MOOD_GOOD);
		struct kvclient_series *s = series_run(w, 10);
		if (!early)
			wait_for(w, is_done, 1);
		wait_for(w, so_many_were_asked_for, KVCLIENT_SERIES_AHEAD);
		kvclient_series_free(&s);
		kvclient_lease_release(&w->lease);
		wait_for(w, all_released, KVCLIENT_SERIES_AHEAD);
		assert_int_equal(w->done, early ? w->done : 1);
		client_teardown(w);
	}
}

static void a_series_ends_with_its_store(void **state)
{
	struct world *w = setup_ready(MOOD_REFUSING);
	(void)state;
	struct kvclient_series *s = series_run(w, 3);
	wait_for(w, is_done, 1);
	assert_int_equal(w->code, CGN_NOT_FOUND);
	kvclient_series_free(&s);
	w->mood = MOOD_SILENT;
	w->done = 0;
	s = series_run(w, 3);
	wait_for(w, store_heard, 0);
	packet_close(&w->conn);
	wait_for(w, is_done, 1);
	assert_int_equal(w->code, CGN_UNAVAILABLE);
	kvclient_series_next(s); /* No call is left to start. */
	wait_for(w, is_done, 2);
	assert_int_equal(w->code, CGN_UNAVAILABLE);
	kvclient_series_free(&s);
	client_teardown(w);
}

static void a_watch_goes_on_through_reconnects(void **state)
{
	struct world *w = setup_ready(MOOD_GOOD);
	(void)state;
	kvclient_watch(w->c, on_changes, w);
	wait_for(w, is_synced, 1);
	assert_int_equal(w->changes, 600);
	assert_int_equal(w->resets, 1);
	packet_close(&w->conn);
	wait_for(w, is_synced, 2);
	assert_int_equal(w->resets, 2);
	assert_int_equal(w->watches, 2);
	kvclient_watch(w->c, NULL, NULL);
	client_get(w, NULL);
	wait_for(w, is_done, 1);
	assert_int_equal(w->stops, 1);
	client_teardown(w);
}

static void no_store_is_said_once(void **state)
{
	struct world *w = client_setup(MOOD_GOOD);
	(void)state;
	packet_listener_close(&w->ln);
	wait_for(w, is_away, 1);
	assert_non_null(strstr(w->why, "cannot connect"));
	open_store(w);
	wait_for(w, is_ready, 1);
	assert_int_equal(w->away, 1);
	client_teardown(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lookups_of_any_length),
		cmocka_unit_test(a_value_is_lent_and_given_back),
		cmocka_unit_test(the_next_get_takes_the_last_lease_back),
		cmocka_unit_test(a_long_value_is_summed_on_the_pool),
		cmocka_unit_test(no_bytes_are_a_value_too),
		cmocka_unit_test(a_wrong_value_is_never_given_out),
		cmocka_unit_test(a_store_that_is_none_is_left_alone),
		cmocka_unit_test(nonsense_ends_the_connection),
		cmocka_unit_test(when_the_store_dies),
		cmocka_unit_test(no_callback_runs_after_free),
		cmocka_unit_test(a_call_has_its_deadline),
		cmocka_unit_test(there_are_only_so_many_calls),
		cmocka_unit_test(what_waits_to_be_sent_is_bounded),
		cmocka_unit_test(values_go_in_by_the_shorter_way),
		cmocka_unit_test(pieces_come_in_order_and_ahead),
		cmocka_unit_test(a_piece_that_waited_too_long_is_asked_for_again),
		cmocka_unit_test(what_could_not_be_lent_ahead_is_asked_for_in_its_turn),
		cmocka_unit_test(what_came_ahead_gives_way),
		cmocka_unit_test(a_series_that_is_left_gives_back_what_came),
		cmocka_unit_test(a_series_ends_with_its_store),
		cmocka_unit_test(a_watch_goes_on_through_reconnects),
		cmocka_unit_test(no_store_is_said_once),
	};
	alarm(90); /* A test that hangs ends the program. */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
