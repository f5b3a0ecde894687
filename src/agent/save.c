/* SPDX-License-Identifier: Apache-2.0 */
/* save: a slot's state, from the engine to a file, from there into the store: pieces, then the card that says
 * they are all there, then links. The file has no name any more once it is open; one that the engine writes
 * later is swept away by folder.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/slotmgr.h"
#include "base/log/log.h"

#define SAVE_TAG        0xa9e17007U
#define ENGINE_TIMEOUT  (30 * CGN_SEC) /* it saves once the slot's other work is over */
#define ANSWER_BYTES    ((size_t)64 * 1024)
#define STATE_MAX_BYTES (SLOT_PIECE_BYTES * SLOT_ENTRY_MAX_PIECES)

struct save;
struct save_call {
	struct save *save;
	struct kvclient_call *call; /* NULL: none */
};

struct save {
	uint32_t tag;
	struct keep *keep;
	struct cgn_loop *loop;
	uint64_t epoch, used_at;
	uint32_t slot;
	struct cgn_link link; /* of the keep's saves */
	void (*moved)(void *user);
	void (*stored)(void *user, bool ok);
	void *user; /* NULL functions: nobody waits */
	bool moving;

	struct fetch *fetch;
	struct slot_file file;
	uint32_t known; /* tokens that the slot should hold; 0: not known */
	uint64_t told;  /* bytes, by the engine */
	/* Of the pool: */
	int fd[SLOT_ENTRY_FILES];
	int failed;      /* errno */
	const char *odd; /* what it is instead of a state */
	uint64_t size[SLOT_ENTRY_FILES];

	struct slot_entry slot_entry;
	uint64_t *chain, *sums;
	uint32_t piece; /* that is being put */
	size_t calls;   /* of the store, under way */
	struct save_call call[SLOT_ENTRY_LINKS];
	bool over, on_pool;
	cgn_nsec began;
	struct cgn_grave grave;
};

/* ---- end ---- */

static void released(struct cgn_grave *g)
{
	struct save *s = CGN_CONTAINER(g, struct save, grave);
	for (size_t i = 0; i < SLOT_ENTRY_FILES; i++)
		if (s->fd[i] >= 0)
			(void)close(s->fd[i]);
	free(s->chain);
	free(s->sums);
	s->tag = 0;
	free(s);
}

static void retire(struct save *s)
{
	struct keep *k = s->keep;
	for (size_t i = 0; i < CGN_COUNT(s->call); i++)
		kvclient_call_cancel(&s->call[i].call);
	fetch_cancel(&s->fetch);
	slot_file_end(&s->file);
	cgn_list_drop(&s->link);
	k->n_saves--;
	s->over = true;
	if (!s->on_pool)
		cgn_loop_bury(s->loop, &s->grave, released);
}

static bool is_of_now(const struct save *s)
{
	return s->keep->slots != NULL && s->epoch == s->keep->epoch;
}

/* The engine is done with the slot, whatever came of it. */
static void moved(struct save *s)
{
	void (*tell)(void *) = s->moved;
	if (!s->moving)
		return;
	s->moving = false;
	if (is_of_now(s))
		slots_moved(s->keep->slots, s->slot);
	s->moved = NULL;
	if (tell != NULL)
		tell(s->user);
	else if (is_of_now(s))
		slotmgr_slot_idle(s->keep, s->slot);
}

static void finish(struct save *s, const char *outcome, const char *why)
{
	struct keep *k = s->keep;
	bool ok = why == NULL;
	void (*tell)(void *, bool) = s->stored;
	s->stored = NULL;
	metric_add(METRIC_OF(k->e->agent->telemetry, SLOT_SAVES, k->e->name, outcome), 1);
	if (ok)
		k->saves++;
	else
		k->save_failures++;
	if (!ok)
		slotmgr_trouble(k, "a slot's state can't be saved", why);
	if (strcmp(outcome, "engine") == 0)
		slotmgr_engine_did(k, false);
	moved(s);
	if (tell != NULL)
		tell(s->user, ok);
	retire(s);
}

/* ---- into the store ---- */

static void put_next(struct save *s);

static struct block_meta meta_of(const struct save *s, bool with_tokens)
{
	const struct engine *e = s->keep->e;
	return (struct block_meta){.model = cgn_str_of(e->n_models > 0 ? e->models[0] : ""),
		.tokens = with_tokens ? s->slot_entry.tokens : 0};
}

static bool put_bytes(struct save *s, struct block_key key, void *bytes, size_t n, bool with_tokens,
	kvclient_done_fn *done, struct save_call *call)
{
	const struct iovec iov = {bytes, n};
	const struct kvclient_source from = {.iov = &iov, .n_iov = 1, .fd = -1, .length = n};
	const struct block_meta meta = meta_of(s, with_tokens);
	return cgn_ok(kvclient_put(slotmgr_kvclient(s->keep), &key, &meta, &from, false, done, call,
		&call->call, NULL));
}

static void stored(struct save *s)
{
	struct keep *k = s->keep;
	uint64_t bytes = slot_entry_bytes(&s->slot_entry);
	if (is_of_now(s)) {
		slots_stored(k->slots, s->slot, s->used_at, s->slot_entry.tokens);
		if (!cgn_ok(slot_directory_add(k->slot_directory, &s->slot_entry, NULL)))
			slotmgr_trouble(k, "a state is not told of", "there are too many in the store");
		metric_set(k->m_states, (double)slot_directory_states(k->slot_directory));
	}
	metric_add(k->m_saved_bytes, bytes);
	slotmgr_engine_did(k, true);
	cgn_log(INFO, "slot.saved", F_STR("engine", k->e->name), F_U64("slot", s->slot),
		F_U64("tokens", s->slot_entry.tokens), F_U64("bytes", bytes),
		F_U64("blocks", s->slot_entry.n), F_DUR("took", cgn_clock_now() - s->began));
	finish(s, "stored", NULL);
}

static void one_less(struct save *s)
{
	if (--s->calls > 0)
		return;
	stored(s);
}

/* Links are hints: without one the state is found by others. */
static void on_link(void *user, const struct kvclient_answer *a)
{
	struct save_call *c = user;
	(void)a;
	c->call = NULL;
	one_less(c->save);
}

static void ignored(void *user, const struct kvclient_answer *a)
{
	(void)user;
	(void)a;
}

/* Who begins alike is served by the longer one as well. */
static void remove_shorter(struct save *s)
{
	struct keep *k = s->keep;
	struct slot_directory_find f;
	struct block_key keys[SLOT_ENTRY_LINKS];
	if (!is_of_now(s) || !slot_directory_find_prefix(k->slot_directory, &s->slot_entry, &f))
		return;
	/* The card first: from then on nobody begins to read it. */
	size_t n = 0;
	for (uint32_t i = 0; i <= slot_entry_pieces(&f.slot_entry) && n < CGN_COUNT(keys); i++)
		keys[n++] = slotmgr_key(k->keys.slot_entry, slot_entry_id(&f.slot_entry), i);
	(void)kvclient_remove(slotmgr_kvclient(k), keys, n, ignored, NULL, NULL, NULL).code;
}

static void put_links(struct save *s)
{
	struct keep *k = s->keep;
	uint32_t at[SLOT_ENTRY_LINKS];
	size_t n = slot_entry_links(s->slot_entry.n, at);
	s->calls = 1; /* ours, until all of them were begun */
	for (size_t i = 0; i < n; i++) {
		const struct slot_link l = {.id = slot_entry_id(&s->slot_entry),
			.blocks = at[i] + 1,
			.tokens = s->slot_entry.tokens,
			.prompt = s->slot_entry.prompt,
			.chain_blocks = (uint32_t)s->slot_entry.n,
			.bytes = slot_entry_bytes(&s->slot_entry)};
		uint8_t bytes[SLOT_LINK_BYTES];
		slot_link_write(&l, bytes);
		if (put_bytes(s, slotmgr_key(k->keys.link, s->chain[at[i]], 0), bytes, sizeof bytes, false,
			    on_link, &s->call[i]))
			s->calls++;
	}
	remove_shorter(s);
	one_less(s);
}

static void on_card(void *user, const struct kvclient_answer *a)
{
	struct save_call *c = user;
	struct save *s = c->save;
	CGN_LIVE(s, SAVE_TAG);
	c->call = NULL;
	if (a->err->code != CGN_FINE)
		finish(s, "store", a->err->msg);
	else
		put_links(s);
}

static void put_card(struct save *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	slot_entry_write(&s->slot_entry, &b);
	if (b.bad ||
		!put_bytes(s, slotmgr_key(s->keep->keys.slot_entry, slot_entry_id(&s->slot_entry), 0), b.p,
			b.n, true, on_card, &s->call[0]))
		finish(s, "store", "it takes no more");
}

static void on_piece(void *user, const struct kvclient_answer *a)
{
	struct save_call *c = user;
	struct save *s = c->save;
	CGN_LIVE(s, SAVE_TAG);
	c->call = NULL;
	if (a->err->code != CGN_FINE || a->n != 1) {
		finish(s, "store", a->err->msg);
		return;
	}
	s->sums[s->piece++] = a->infos[0].checksum;
	put_next(s);
}

static void put_next(struct save *s)
{
	struct cgn_err err = {0};
	if (s->piece == slot_entry_pieces(&s->slot_entry)) {
		put_card(s);
		return;
	}
	struct slot_entry_piece p = slot_entry_piece(&s->slot_entry, s->piece);
	const struct kvclient_source from = {.fd = s->fd[p.file], .offset = p.offset, .length = p.bytes};
	const struct block_meta meta = meta_of(s, false);
	const struct block_key key =
		slotmgr_key(s->keep->keys.slot_entry, slot_entry_id(&s->slot_entry), s->piece + 1);
	if (!cgn_ok(kvclient_put(slotmgr_kvclient(s->keep), &key, &meta, &from, false, on_piece, &s->call[0],
		    &s->call[0].call, &err)))
		finish(s, "store", err.msg);
}

/* ---- the file ---- */

/* The engine is somebody else's program, and may have left anything there: a link, a pipe that would be
 * waited for. */
static void open_one(struct save *s, size_t i, const char *path)
{
	struct stat st = {.st_mode = 0};
	s->fd[i] = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (s->fd[i] < 0 && i > 0 && errno == ENOENT)
		return;
	if (s->fd[i] < 0 || fstat(s->fd[i], &st) != 0)
		s->failed = errno;
	else if (!S_ISREG(st.st_mode))
		s->odd = "it is no file";
	(void)unlink(path);
	s->size[i] = st.st_size > 0 ? (uint64_t)st.st_size : 0;
}

static void open_work(void *arg)
{
	struct save *s = arg;
	char ckpt[sizeof s->file.path + 8];
	(void)snprintf(ckpt, sizeof ckpt, "%s.ckpt", s->file.path);
	open_one(s, 0, s->file.path);
	open_one(s, 1, ckpt);
	if (s->failed == 0 && s->odd == NULL && s->size[0] != s->told && s->size[0] + s->size[1] != s->told)
		s->odd = "it is not as long as the engine says";
}

static void opened(void *arg)
{
	struct save *s = arg;
	CGN_LIVE(s, SAVE_TAG);
	s->on_pool = false;
	if (s->over) {
		cgn_loop_bury(s->loop, &s->grave, released);
		return;
	}
	for (size_t i = 0; i < SLOT_ENTRY_FILES; i++)
		s->slot_entry.file_bytes[i] = s->size[i];
	if (s->failed == 0 && s->odd == NULL &&
		(s->size[0] > STATE_MAX_BYTES || s->size[1] > STATE_MAX_BYTES ||
			slot_entry_pieces(&s->slot_entry) > SLOT_ENTRY_MAX_PIECES))
		s->odd = "it is too long";
	if (s->failed != 0 || s->odd != NULL) {
		char why[700];
		(void)snprintf(why, sizeof why, "%.500s: %s", s->file.path,
			s->failed != 0 ? strerror(s->failed) : s->odd);
		finish(s, "engine", why);
		return;
	}
	s->sums = calloc(slot_entry_pieces(&s->slot_entry), sizeof *s->sums);
	s->slot_entry.sums = s->sums;
	if (s->sums == NULL || slotmgr_kvclient(s->keep) == NULL)
		finish(s, "store", "it is away");
	else
		put_next(s);
}

static void read_file(struct save *s)
{
	s->on_pool = cgn_ok(cgn_loop_work(s->loop, open_work, opened, s));
	if (!s->on_pool)
		finish(s, "engine", "no memory");
	else
		moved(s);
}

static void on_adapters(void *user, const struct fetch_result *r)
{
	struct save *s = user;
	CGN_LIVE(s, SAVE_TAG);
	s->fetch = NULL;
	enum fingerprint_match same = fingerprint_compare(s->keep, r);
	if (same == FINGERPRINT_SAME)
		read_file(s);
	else if (same == FINGERPRINT_CHANGED)
		slotmgr_engine_changed(s->keep); /* which stops this one */
	else
		finish(s, "engine", "it does not say how its adapters count");
}

static void on_saved(void *user, const struct fetch_result *r)
{
	struct save *s = user;
	struct keep *k = s->keep;
	struct json_val doc = {.type = JSON_NULL};
	CGN_LIVE(s, SAVE_TAG);
	s->fetch = NULL;
	bool ok =
		r->err->code == CGN_FINE && r->status == 200 && cgn_ok(json_parse(r->body, &doc, NULL, NULL));
	uint64_t tokens = ok ? json_get_u64(doc, "n_saved", 0) : 0,
		 bytes = ok ? json_get_u64(doc, "n_written", 0) : 0;
	if (tokens == 0 || tokens > UINT32_MAX || bytes == 0) {
		finish(s, "engine",
			r->err->code != CGN_FINE ? r->err->msg
						 : "it answered something else to a save than it should");
		return;
	}
	if (s->known > 0 &&
		(tokens > s->known ? tokens - s->known : s->known - tokens) > SLOTMGR_TOKEN_SLACK) {
		char why[120];
		(void)snprintf(why, sizeof why,
			"it says that slot %u has %llu tokens, which should be %u: somebody else uses it",
			s->slot, (unsigned long long)tokens, s->known);
		if (is_of_now(s))
			slots_forget(k->slots, s->slot);
		finish(s, "engine", why);
		return;
	}
	s->told = bytes;
	slots_pace_learn(&k->pace.save_ms, (double)(cgn_clock_now() - s->began) / 1e6,
		(double)bytes / SLOTS_MIB, 0.25);
	slots_pace_learn(&k->pace.token_bytes, (double)bytes, (double)tokens, 1);
	s->slot_entry.tokens = (uint32_t)tokens;
	s->slot_entry.prompt =
		s->slot_entry.prompt < s->slot_entry.tokens ? s->slot_entry.prompt : s->slot_entry.tokens;
	if (!fingerprint_may_change(k))
		read_file(s);
	else if (!cgn_ok(fingerprint_reread(k, on_adapters, s, &s->fetch, NULL)))
		finish(s, "engine", "no memory");
}

/* ---- begin ---- */

static bool ask_engine(struct save *s, const char *name)
{
	struct keep *k = s->keep;
	char path[64], json[160];
	(void)snprintf(path, sizeof path, "/slots/%u?action=save", s->slot);
	int n = snprintf(json, sizeof json, "{\"filename\":\"%s\"}", name);
	const struct fetch_ask post = {.client = k->e->client,
		.url = &k->e->url,
		.path = path,
		.authorization = k->e->authorization,
		.json = {json, (size_t)n},
		.max_bytes = ANSWER_BYTES,
		.timeout = ENGINE_TIMEOUT};
	return cgn_ok(fetch_start(k->e->agent->loop, &post, on_saved, s, &s->fetch, NULL));
}

struct save *save_start(struct keep *k, uint32_t slot, void (*on_moved)(void *user),
	void (*on_stored)(void *user, bool ok), void *user)
{
	struct slot_view v = slots_at(k->slots, slot);
	if (k->n_saves == SLOTMGR_MAX_SAVES || slotmgr_kvclient(k) == NULL || slotmgr_is_paused(k) ||
		v.n == 0)
		return NULL;
	struct save *s = calloc(1, sizeof *s);
	uint64_t *chain = malloc(v.n * sizeof *chain);
	if (s == NULL || chain == NULL) {
		free(s);
		free(chain);
		return NULL;
	}
	memcpy(chain, v.chain, v.n * sizeof *chain);
	*s = (struct save){.tag = SAVE_TAG,
		.keep = k,
		.loop = k->e->agent->loop,
		.epoch = k->epoch,
		.used_at = v.used_at,
		.slot = slot,
		.known = v.tokens,
		.moved = on_moved,
		.stored = on_stored,
		.user = user,
		.fd = {-1, -1},
		.chain = chain,
		.began = cgn_clock_now()};
	for (size_t i = 0; i < CGN_COUNT(s->call); i++)
		s->call[i].save = s;
	s->slot_entry = (struct slot_entry){.chain = chain, .n = v.n, .prompt = v.prompt};
	slot_file_begin(k, "save", &s->file);
	if (!ask_engine(s, s->file.name)) {
		slot_file_end(&s->file);
		free(chain);
		free(s);
		return NULL;
	}
	slots_move(k->slots, slot);
	s->moving = true;
	cgn_list_push(&k->saves_now, &s->link);
	k->n_saves++;
	return s;
}

void save_leave(struct save **take)
{
	struct save *s = *take;
	*take = NULL;
	if (s == NULL)
		return;
	CGN_LIVE(s, SAVE_TAG);
	s->moved = NULL;
	s->stored = NULL;
}

void save_stop(struct cgn_link *job)
{
	struct save *s = CGN_CONTAINER(job, struct save, link);
	CGN_LIVE(s, SAVE_TAG);
	void (*tell)(void *, bool) = s->stored;
	s->stored = NULL;
	retire(s);
	if (tell != NULL) /* nobody else does: it is on no list of those that wait */
		tell(s->user, false);
}
