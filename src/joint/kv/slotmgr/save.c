/* SPDX-License-Identifier: Apache-2.0 */
/* save: a slot's state, from the engine into a file and from the file into the store: pieces, then the slot entry
 * that says that all pieces are there, then links. The file is unlinked once it is open; folder.c removes a
 * file that the engine writes later. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log/log.h"
#include "joint/kv/slotmgr/states_priv.h"

#define SAVE_TAG        0xa9e17007U
#define ENGINE_TIMEOUT  (30 * CGN_SEC) /* The engine saves after the slot's other work */
#define STATE_MAX_BYTES (SLOT_PIECE_BYTES * SLOT_ENTRY_MAX_PIECES)

struct save_call {
	struct slot_save *save;
	struct kvclient_call *call; /* NULL: none is under way */
};

struct slot_save {
	uint32_t tag;
	struct slotmgr *mgr;
	struct cgn_loop *loop;
	uint64_t epoch, used_at;
	uint32_t slot;
	struct cgn_link link;      /* In slotmgr.saves */
	void (*moved)(void *user); /* Callbacks; NULL: none */
	void (*stored)(void *user, bool ok);
	void *user;
	bool moving; /* The slot is moving */

	struct webask *fetch;
	struct slot_file file;
	uint32_t known; /* Tokens that the slot should hold; 0: not known */
	uint64_t told;  /* Bytes of the state, as the engine says */
	/* Written on the thread pool */
	int fd[SLOT_ENTRY_FILES];
	int failed;      /* errno */
	const char *odd; /* Why the file does not hold a state; NULL: it does */
	uint64_t size[SLOT_ENTRY_FILES];

	struct slot_entry entry;
	uint64_t *chain, *sums;
	struct slot_tenant tenant; /* owner of the slot's prompt */
	uint32_t piece;            /* Piece that is being put */
	size_t calls;              /* Calls to the store that have not ended */
	struct save_call call[SLOT_ENTRY_LINKS];
	bool over, on_pool;
	cgn_nsec began;
	struct cgn_grave grave;
};

/* ---- end ---- */

static void save_release(struct cgn_grave *g)
{
	struct slot_save *s = CGN_CONTAINER(g, struct slot_save, grave);
	for (size_t i = 0; i < SLOT_ENTRY_FILES; i++)
		if (s->fd[i] >= 0)
			(void)close(s->fd[i]);
	free(s->chain);
	free(s->sums);
	s->tag = 0;
	free(s);
}

static void save_retire(struct slot_save *s)
{
	struct slotmgr *m = s->mgr;
	for (size_t i = 0; i < CGN_COUNT(s->call); i++)
		kvclient_call_cancel(&s->call[i].call);
	webask_cancel(&s->fetch);
	slot_file_end(&s->file);
	cgn_list_drop(&s->link);
	m->n_saves--;
	s->over = true;
	if (!s->on_pool)
		cgn_loop_bury(s->loop, &s->grave, save_release);
}

static bool save_is_current(const struct slot_save *s)
{
	return s->mgr->slots != NULL && s->epoch == s->mgr->epoch;
}

/* The engine has finished with the slot, with or without success. */
static void save_moved(struct slot_save *s)
{
	void (*tell)(void *) = s->moved;
	if (!s->moving)
		return;
	s->moving = false;
	if (save_is_current(s))
		slots_moved(s->mgr->slots, s->slot);
	s->moved = NULL;
	if (tell != NULL)
		tell(s->user);
	else if (save_is_current(s))
		slotmgr_slot_idle(s->mgr, s->slot);
}

static void save_finish(struct slot_save *s, const char *outcome, const char *why)
{
	struct slotmgr *m = s->mgr;
	bool ok = why == NULL;
	void (*tell)(void *, bool) = s->stored;
	s->stored = NULL;
	metric_add(METRIC_OF(m->telemetry, SLOT_SAVES, m->name, outcome), 1);
	if (ok)
		m->stats.saves++;
	else
		m->stats.save_failures++;
	if (!ok)
		slotmgr_trouble(m, "a slot's state can't be saved", why);
	if (strcmp(outcome, "engine") == 0)
		slotmgr_engine_did(m, false);
	save_moved(s);
	if (tell != NULL)
		tell(s->user, ok);
	save_retire(s);
}

/* ---- into the store ---- */

static void save_put_next(struct slot_save *s);

static struct block_meta save_meta(const struct slot_save *s, bool with_tokens)
{
	const char *model = s->mgr->ops->engine(s->mgr->user).model;
	return (struct block_meta){.model = cgn_str_of(model != NULL ? model : ""),
		.tenant = slot_tenant_text(&s->tenant),
		.tokens = with_tokens ? s->entry.tokens : 0};
}

static bool save_put_bytes(struct slot_save *s, struct block_key key, void *bytes, size_t n, bool with_tokens,
	kvclient_done_fn *done, struct save_call *call)
{
	const struct iovec iov = {bytes, n};
	const struct kvclient_source from = {.iov = &iov, .n_iov = 1, .fd = -1, .length = n};
	const struct block_meta meta = save_meta(s, with_tokens);
	return cgn_ok(kvclient_put(slotmgr_kvclient(s->mgr), &key, &meta, &from, false, done, call,
		&call->call, NULL));
}

static void save_stored(struct slot_save *s)
{
	struct slotmgr *m = s->mgr;
	uint64_t bytes = slot_entry_bytes(&s->entry);
	if (save_is_current(s)) {
		slots_stored(m->slots, s->slot, s->used_at, s->entry.tokens);
		if (!cgn_ok(slot_directory_add(m->entries.directory, &s->entry, NULL)))
			slotmgr_trouble(m, "a stored state is not reported to routers",
				"the store has too many states");
		metric_set(m->stats.states, (double)slot_directory_states(m->entries.directory));
	}
	metric_add(m->stats.saved_bytes, bytes);
	slotmgr_engine_did(m, true);
	cgn_log(INFO, "slot.saved", F_STR("engine", m->name), F_U64("slot", s->slot),
		F_U64("tokens", s->entry.tokens), F_U64("bytes", bytes), F_U64("blocks", s->entry.n),
		F_DUR("took", cgn_since(cgn_clock_now(), s->began)));
	save_finish(s, "stored", NULL);
}

static void save_call_ended(struct slot_save *s)
{
	if (--s->calls > 0)
		return;
	save_stored(s);
}

/* A failed link is ignored: the state is found by its other links. */
static void on_link_put(void *user, const struct kvclient_answer *a)
{
	struct save_call *c = user;
	(void)a;
	c->call = NULL;
	save_call_ended(c->save);
}

static void on_removed(void *user, const struct kvclient_answer *a)
{
	(void)user;
	(void)a;
}

/* Remove a stored state that is a prefix of the new one, which serves the same prompts. */
static void save_remove_shorter(struct slot_save *s)
{
	struct slotmgr *m = s->mgr;
	struct slot_directory_find f;
	struct block_key keys[SLOT_ENTRY_LINKS];
	if (!save_is_current(s) || !slot_directory_find_prefix(m->entries.directory, &s->entry, &f))
		return;
	/* The slot entry goes first, so that no restore of the state begins. */
	size_t n = 0;
	for (uint32_t i = 0; i <= slot_entry_pieces(&f.entry) && n < CGN_COUNT(keys); i++)
		keys[n++] = slotmgr_key(m->fingerprint.keys.entry, slot_entry_id(&f.entry), i);
	(void)kvclient_remove(slotmgr_kvclient(m), keys, n, on_removed, NULL, NULL, NULL).code;
}

static void save_put_links(struct slot_save *s)
{
	struct slotmgr *m = s->mgr;
	uint32_t at[SLOT_ENTRY_LINKS];
	size_t n = slot_entry_links(s->entry.n, at);
	s->calls = 1; /* Held until all links are begun */
	for (size_t i = 0; i < n; i++) {
		const struct slot_link l = {.id = slot_entry_id(&s->entry),
			.blocks = at[i] + 1,
			.tokens = s->entry.tokens,
			.prompt = s->entry.prompt,
			.chain_blocks = (uint32_t)s->entry.n,
			.bytes = slot_entry_bytes(&s->entry)};
		uint8_t bytes[SLOT_LINK_BYTES];
		slot_link_write(&l, bytes);
		if (save_put_bytes(s, slotmgr_key(m->fingerprint.keys.link, s->chain[at[i]], 0), bytes,
			    sizeof bytes, false, on_link_put, &s->call[i]))
			s->calls++;
	}
	save_remove_shorter(s);
	save_call_ended(s);
}

static void on_entry_put(void *user, const struct kvclient_answer *a)
{
	struct save_call *c = user;
	struct slot_save *s = c->save;
	CGN_LIVE(s, SAVE_TAG);
	c->call = NULL;
	if (a->err->code != CGN_FINE)
		save_finish(s, "store", a->err->msg);
	else
		save_put_links(s);
}

static void save_put_entry(struct slot_save *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	slot_entry_write(&s->entry, &b);
	if (b.bad ||
		!save_put_bytes(s, slotmgr_key(s->mgr->fingerprint.keys.entry, slot_entry_id(&s->entry), 0),
			b.p, b.n, true, on_entry_put, &s->call[0]))
		save_finish(s, "store", "the store takes no more data");
}

static void on_piece_put(void *user, const struct kvclient_answer *a)
{
	struct save_call *c = user;
	struct slot_save *s = c->save;
	CGN_LIVE(s, SAVE_TAG);
	c->call = NULL;
	if (a->err->code != CGN_FINE || a->n != 1) {
		save_finish(s, "store", a->err->msg);
		return;
	}
	s->sums[s->piece++] = a->infos[0].checksum;
	save_put_next(s);
}

static void save_put_next(struct slot_save *s)
{
	struct cgn_err err = {0};
	if (s->piece == slot_entry_pieces(&s->entry)) {
		save_put_entry(s);
		return;
	}
	struct slot_entry_piece p = slot_entry_piece(&s->entry, s->piece);
	const struct kvclient_source from = {.fd = s->fd[p.file], .offset = p.offset, .length = p.bytes};
	const struct block_meta meta = save_meta(s, false);
	const struct block_key key =
		slotmgr_key(s->mgr->fingerprint.keys.entry, slot_entry_id(&s->entry), s->piece + 1);
	if (!cgn_ok(kvclient_put(slotmgr_kvclient(s->mgr), &key, &meta, &from, false, on_piece_put,
		    &s->call[0], &s->call[0].call, &err)))
		save_finish(s, "store", err.msg);
}

/* ---- the file ---- */

/* The engine is a foreign program and may leave a symbolic link or a pipe instead of a file. */
static void save_open_one(struct slot_save *s, size_t i, const char *path)
{
	struct stat st = {.st_mode = 0};
	s->fd[i] = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (s->fd[i] < 0 && i > 0 && errno == ENOENT)
		return;
	if (s->fd[i] < 0 || fstat(s->fd[i], &st) != 0)
		s->failed = errno;
	else if (!S_ISREG(st.st_mode))
		s->odd = "it is not a regular file";
	(void)unlink(path);
	s->size[i] = st.st_size > 0 ? (uint64_t)st.st_size : 0;
}

static void save_open_work(void *arg)
{
	struct slot_save *s = arg;
	char ckpt[sizeof s->file.path + 8];
	(void)snprintf(ckpt, sizeof ckpt, "%s.ckpt", s->file.path);
	save_open_one(s, 0, s->file.path);
	save_open_one(s, 1, ckpt);
	if (s->failed == 0 && s->odd == NULL && s->size[0] != s->told && s->size[0] + s->size[1] != s->told)
		s->odd = "its length is not the one that the engine reported";
}

static void save_opened(void *arg)
{
	struct slot_save *s = arg;
	CGN_LIVE(s, SAVE_TAG);
	s->on_pool = false;
	if (s->over) {
		cgn_loop_bury(s->loop, &s->grave, save_release);
		return;
	}
	for (size_t i = 0; i < SLOT_ENTRY_FILES; i++)
		s->entry.file_bytes[i] = s->size[i];
	if (s->failed == 0 && s->odd == NULL &&
		(s->size[0] > STATE_MAX_BYTES || s->size[1] > STATE_MAX_BYTES ||
			slot_entry_pieces(&s->entry) > SLOT_ENTRY_MAX_PIECES))
		s->odd = "it is longer than a state can be";
	if (s->failed != 0 || s->odd != NULL) {
		char why[700];
		(void)snprintf(why, sizeof why, "%.500s: %s", s->file.path,
			s->failed != 0 ? strerror(s->failed) : s->odd);
		save_finish(s, "engine", why);
		return;
	}
	s->sums = CGN_NEW_ARRAY(uint64_t, slot_entry_pieces(&s->entry));
	s->entry.sums = s->sums;
	if (slotmgr_kvclient(s->mgr) == NULL)
		save_finish(s, "store", "the store is not reachable");
	else
		save_put_next(s);
}

static void save_open_files(struct slot_save *s)
{
	s->on_pool = true;
	cgn_loop_work(s->loop, save_open_work, save_opened, s);
	save_moved(s);
}

static void on_save_adapters(void *user, const struct webask_answer *r)
{
	struct slot_save *s = user;
	CGN_LIVE(s, SAVE_TAG);
	s->fetch = NULL;
	enum fingerprint_match same = fingerprint_compare(s->mgr, r);
	if (same == FINGERPRINT_SAME)
		save_open_files(s);
	else if (same == FINGERPRINT_CHANGED)
		slotmgr_engine_changed(s->mgr); /* Stops this save */
	else
		save_finish(s, "engine", "/lora-adapters can't be read");
}

/* False: the slot holds another number of tokens than the slot manager expects, and the save has ended. */
static bool save_check_tokens(struct slot_save *s, uint64_t tokens)
{
	char why[120];
	if (s->known == 0 ||
		(tokens > s->known ? tokens - s->known : s->known - tokens) <= SLOTMGR_TOKEN_SLACK)
		return true;
	(void)snprintf(why, sizeof why,
		"the engine says that slot %u has %llu tokens, expected %u: another client uses the slot",
		s->slot, (unsigned long long)tokens, s->known);
	if (save_is_current(s))
		slots_forget(s->mgr->slots, s->slot);
	save_finish(s, "engine", why);
	return false;
}

static void on_engine_saved(void *user, const struct webask_answer *r)
{
	struct slot_save *s = user;
	struct slotmgr *m = s->mgr;
	struct json_val doc = {.type = JSON_NULL};
	CGN_LIVE(s, SAVE_TAG);
	s->fetch = NULL;
	bool ok = webask_is_ok(r) && cgn_ok(json_parse(r->body, &doc, NULL, NULL));
	uint64_t tokens = ok ? json_get_u64(doc, "n_saved", 0) : 0,
		 bytes = ok ? json_get_u64(doc, "n_written", 0) : 0;
	if (tokens == 0 || tokens > UINT32_MAX || bytes == 0) {
		save_finish(s, "engine",
			r->err->code != CGN_FINE
				? r->err->msg
				: "the engine's answer to a save has no n_saved and n_written");
		return;
	}
	if (!save_check_tokens(s, tokens))
		return;
	s->told = bytes;
	slots_pace_learn(&m->pace.save_ms,
		slotmgr_engine_ms(doc, "save_ms", cgn_since(cgn_clock_now(), s->began)),
		(double)bytes / SLOTS_MIB, 0.25);
	slots_pace_learn(&m->pace.token_bytes, (double)bytes, (double)tokens, 1);
	s->entry.tokens = (uint32_t)tokens;
	s->entry.prompt = s->entry.prompt < s->entry.tokens ? s->entry.prompt : s->entry.tokens;
	if (!fingerprint_may_change(m))
		save_open_files(s);
	else if (!cgn_ok(fingerprint_reread(m, on_save_adapters, s, &s->fetch, NULL)))
		save_finish(s, "engine", "no memory");
}

/* ---- begin ---- */

/* Return a save of the slot that has not begun; NULL without memory. */
static struct slot_save *save_new(struct slotmgr *m, uint32_t slot, const struct slot_view *v)
{
	uint64_t *chain = malloc(v->n * sizeof *chain);
	if (chain == NULL)
		return NULL;
	struct slot_save *s = CGN_NEW(struct slot_save);
	memcpy(chain, v->chain, v->n * sizeof *chain);
	*s = (struct slot_save){.tag = SAVE_TAG,
		.mgr = m,
		.loop = m->loop,
		.epoch = m->epoch,
		.used_at = v->used_at,
		.slot = slot,
		.known = v->tokens,
		.fd = {-1, -1},
		.entry = {.chain = chain, .n = v->n, .prompt = v->prompt},
		.chain = chain,
		.tenant = m->tenants[slot],
		.began = cgn_clock_now()};
	for (size_t i = 0; i < CGN_COUNT(s->call); i++)
		s->call[i].save = s;
	return s;
}

struct slot_save *slot_save_start(struct slotmgr *m, uint32_t slot, void (*on_moved)(void *user),
	void (*on_stored)(void *user, bool ok), void *user)
{
	struct slot_view v = slots_at(m->slots, slot);
	if (m->n_saves == SLOTMGR_MAX_SAVES || slotmgr_kvclient(m) == NULL || slotmgr_is_paused(m) ||
		v.n == 0)
		return NULL;
	struct slot_save *s = save_new(m, slot, &v);
	if (s == NULL)
		return NULL;
	s->moved = on_moved;
	s->stored = on_stored;
	s->user = user;
	slot_file_begin(m, "save", &s->file);
	if (!cgn_ok(slotmgr_ask_engine(m, slot, "save", s->file.name, ENGINE_TIMEOUT, on_engine_saved, s,
		    &s->fetch, NULL))) {
		slot_file_end(&s->file);
		save_release(&s->grave);
		return NULL;
	}
	slots_move(m->slots, slot);
	s->moving = true;
	cgn_list_push(&m->saves, &s->link);
	m->n_saves++;
	return s;
}

bool slot_save_runs(const struct slotmgr *m, uint32_t slot)
{
	uint64_t used_at = slots_at(m->slots, slot).used_at;
	cgn_list_each (l, &m->saves) {
		const struct slot_save *s = CGN_CONTAINER(l, struct slot_save, link);
		if (save_is_current(s) && s->slot == slot && s->used_at == used_at)
			return true;
	}
	return false;
}

struct slot_save *slot_save_await(struct slotmgr *m, uint32_t slot, void (*moved)(void *user), void *user)
{
	cgn_list_each (l, &m->saves) {
		struct slot_save *s = CGN_CONTAINER(l, struct slot_save, link);
		if (!s->moving || !save_is_current(s) || s->slot != slot || s->user != NULL)
			continue;
		s->moved = moved;
		s->user = user;
		return s;
	}
	return NULL;
}

void slot_save_leave(struct slot_save **take)
{
	struct slot_save *s = CGN_TAKE_LIVE(take, SAVE_TAG);
	if (s == NULL)
		return;
	s->moved = NULL;
	s->stored = NULL;
	s->user = NULL;
}

void slot_save_stop(struct cgn_link *link)
{
	struct slot_save *s = CGN_CONTAINER(link, struct slot_save, link);
	CGN_LIVE(s, SAVE_TAG);
	void (*tell)(void *, bool) = s->stored;
	s->stored = NULL;
	save_retire(s);
	if (tell != NULL) /* A request that waits for |stored| is on no list of the manager */
		tell(s->user, false);
}
