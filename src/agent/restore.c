/* SPDX-License-Identifier: Apache-2.0 */
/* restore: a state, from the store to a file, from there into a slot. Its pieces must be those that the card
 * was written for. What the file has been for is over when the engine has read it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/slotmgr.h"
#include "base/log/log.h"

#define RESTORE_TAG  0xa9e17008U
#define ANSWER_BYTES ((size_t)64 * 1024)
#define LONGEST      (60 * CGN_SEC) /* of the engine's part */
#define WRITE_PIECES 64

struct restore {
	uint32_t tag;
	struct keep *keep;
	struct cgn_loop *loop;
	uint64_t epoch;
	uint32_t slot;
	enum slots_from from;
	struct cgn_link link;
	void (*done)(void *user, const struct restore_result *r); /* NULL: nobody waits */
	void *user;

	struct slot_entry slot_entry;
	uint64_t *words; /* of the card */
	struct slot_file file;
	uint32_t piece;
	struct kvclient_series *pieces;
	struct kvclient_lease *lease;
	struct fetch *fetch;
	int failed; /* errno, of the pool */
	bool over, on_pool, asked;
	cgn_nsec began, fetched;
	struct cgn_grave grave;
};

/* ---- end ---- */

static void released(struct cgn_grave *g)
{
	struct restore *r = CGN_CONTAINER(g, struct restore, grave);
	kvclient_lease_release(&r->lease);
	free(r->words);
	r->tag = 0;
	free(r);
}

static void remove_work(void *arg)
{
	struct restore *r = arg;
	char ckpt[sizeof r->file.path + 8];
	(void)snprintf(ckpt, sizeof ckpt, "%s.ckpt", r->file.path);
	(void)unlink(r->file.path);
	if (r->slot_entry.file_bytes[1] > 0)
		(void)unlink(ckpt);
}

static void removed(void *arg)
{
	struct restore *r = arg;
	cgn_loop_bury(r->loop, &r->grave, released);
}

static void retire(struct restore *r)
{
	kvclient_series_free(&r->pieces);
	fetch_cancel(&r->fetch);
	slot_file_end(&r->file);
	cgn_list_drop(&r->link);
	r->over = true;
	if (r->on_pool)
		return;
	if (!cgn_ok(cgn_loop_work(r->loop, remove_work, removed, r))) {
		remove_work(r);
		removed(r);
	}
}

static bool is_of_now(const struct restore *r)
{
	return r->keep->slots != NULL && r->epoch == r->keep->epoch;
}

static void finish(struct restore *r, const char *outcome, const struct restore_result *result)
{
	struct keep *k = r->keep;
	metric_add(METRIC_OF(k->e->agent->telemetry, SLOT_RESTORES, k->e->name, outcome), 1);
	if (result->ok)
		k->restores++;
	else
		k->restore_failures++;
	if (is_of_now(r) && result->ok)
		slots_restored(k->slots, r->slot, r->slot_entry.chain, r->slot_entry.n, r->slot_entry.prompt,
			result->tokens);
	else if (is_of_now(r) && r->asked) /* it empties a slot that it can't restore */
		slots_restored(k->slots, r->slot, NULL, 0, 0, 0);
	else if (is_of_now(r))
		slots_moved(k->slots, r->slot);
	if (r->done != NULL)
		r->done(r->user, result);
	else if (is_of_now(r))
		slotmgr_slot_idle(k, r->slot);
	retire(r);
}

static void fail(struct restore *r, enum restore_outcome how, const char *why)
{
	const struct restore_result result = {.ok = false, .how = how};
	slotmgr_trouble(r->keep, "a state can't be restored", why);
	finish(r, restore_outcome_text(how), &result);
}

/* ---- into the engine ---- */

static void on_restored(void *user, const struct fetch_result *f)
{
	static const enum restore_outcome hows[] = {[SLOTS_FROM_RAM] = RESTORE_FROM_RAM,
		[SLOTS_FROM_SSD] = RESTORE_FROM_SSD,
		[SLOTS_FROM_PEER] = RESTORE_FROM_PEER};
	struct restore *r = user;
	struct keep *k = r->keep;
	struct json_val doc = {.type = JSON_NULL};
	CGN_LIVE(r, RESTORE_TAG);
	r->fetch = NULL;
	bool fine =
		f->err->code == CGN_FINE && f->status == 200 && cgn_ok(json_parse(f->body, &doc, NULL, NULL));
	uint64_t tokens = fine ? json_get_u64(doc, "n_restored", 0) : 0;
	if (tokens != r->slot_entry.tokens) {
		if (f->err->code == CGN_FINE) /* it has judged, and would again */
			slotmgr_refuse(k, slot_entry_id(&r->slot_entry), r->slot_entry.sums[0]);
		slotmgr_engine_did(k, false);
		fail(r, RESTORE_FAILED_ENGINE,
			f->err->code != CGN_FINE ? f->err->msg
				: !fine          ? "the engine refused it"
						 : "it restored another number of tokens than the state has");
		return;
	}
	slotmgr_engine_did(k, true);
	cgn_nsec now = cgn_clock_now();
	double mib = (double)slot_entry_bytes(&r->slot_entry) / SLOTS_MIB;
	slots_pace_learn(&k->pace.load_ms, (double)(now - r->fetched) / 1e6, mib, 0.25);
	metric_observe(k->m_restore_seconds, now - r->began);
	cgn_log(INFO, "slot.restored", F_STR("engine", k->e->name), F_U64("slot", r->slot),
		F_STR("from", restore_outcome_text(hows[r->from])), F_U64("tokens", tokens),
		F_U64("bytes", slot_entry_bytes(&r->slot_entry)), F_DUR("took", now - r->began),
		F_DUR("engine_took", now - r->fetched));
	const struct restore_result result = {.ok = true,
		.how = hows[r->from],
		.tokens = (uint32_t)tokens,
		.ms = (double)(now - r->began) / 1e6};
	finish(r, restore_outcome_text(hows[r->from]), &result);
}

static void ask_engine(struct restore *r)
{
	struct keep *k = r->keep;
	struct cgn_err err = {0};
	char path[64], json[160];
	r->fetched = cgn_clock_now();
	slots_pace_learn(&k->pace.fetch_ms[r->from], (double)(r->fetched - r->began) / 1e6,
		(double)slot_entry_bytes(&r->slot_entry) / SLOTS_MIB, 0.25);
	(void)snprintf(path, sizeof path, "/slots/%u?action=restore", r->slot);
	int n = snprintf(json, sizeof json, "{\"filename\":\"%s\"}", r->file.name);
	const struct fetch_ask post = {.client = k->e->client,
		.url = &k->e->url,
		.path = path,
		.authorization = k->e->authorization,
		.json = {json, (size_t)n},
		.max_bytes = ANSWER_BYTES,
		.timeout = LONGEST};
	r->asked = true;
	if (!cgn_ok(fetch_start(k->e->agent->loop, &post, on_restored, r, &r->fetch, &err)))
		fail(r, RESTORE_FAILED_ENGINE, err.msg);
}

static void on_adapters(void *user, const struct fetch_result *f)
{
	struct restore *r = user;
	CGN_LIVE(r, RESTORE_TAG);
	r->fetch = NULL;
	enum fingerprint_match same = fingerprint_compare(r->keep, f);
	if (same == FINGERPRINT_SAME)
		ask_engine(r);
	else if (same == FINGERPRINT_CHANGED)
		slotmgr_engine_changed(r->keep); /* which stops this one */
	else
		fail(r, RESTORE_FAILED_ENGINE, "it does not say how its adapters count");
}

static void ask_if_same(struct restore *r)
{
	struct cgn_err err = {0};
	if (!fingerprint_may_change(r->keep))
		ask_engine(r);
	else if (!cgn_ok(fingerprint_reread(r->keep, on_adapters, r, &r->fetch, &err)))
		fail(r, RESTORE_FAILED_ENGINE, err.msg);
}

/* ---- into the file ---- */

static void get_next(struct restore *r);

static ssize_t write_some(int fd, const struct iovec *iov, size_t n, uint64_t skip, uint64_t at)
{
	struct iovec some[WRITE_PIECES];
	int used = 0;
	for (size_t i = 0; i < n && used < WRITE_PIECES; i++) {
		if (skip >= iov[i].iov_len) {
			skip -= iov[i].iov_len;
			continue;
		}
		some[used++] = (struct iovec){(char *)iov[i].iov_base + skip, iov[i].iov_len - skip};
		skip = 0;
	}
	return pwritev(fd, some, used, (off_t)at);
}

static void write_work(void *arg)
{
	struct restore *r = arg;
	struct slot_entry_piece p = slot_entry_piece(&r->slot_entry, r->piece);
	char path[sizeof r->file.path + 8];
	size_t n = 0;
	const struct iovec *iov = kvclient_lease_iov(r->lease, &n);
	(void)snprintf(path, sizeof path, p.file == 0 ? "%s" : "%s.ckpt", r->file.path);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (p.offset == 0 ? O_EXCL : 0), 0640);
	r->failed = fd < 0 ? errno : 0;
	for (uint64_t done = 0; r->failed == 0 && done < p.bytes;) {
		ssize_t w = write_some(fd, iov, n, done, p.offset + done);
		if (w > 0)
			done += (uint64_t)w;
		else if (w == 0 || errno != EINTR)
			r->failed = w == 0 ? EIO : errno;
	}
	if (fd >= 0 && close(fd) != 0 && r->failed == 0)
		r->failed = errno;
}

static void written(void *arg)
{
	struct restore *r = arg;
	CGN_LIVE(r, RESTORE_TAG);
	bool stale = kvclient_lease_is_stale(r->lease);
	r->on_pool = false;
	kvclient_lease_release(&r->lease);
	if (r->over) {
		retire(r);
		return;
	}
	if (r->failed != 0 || stale) {
		char why[700];
		(void)snprintf(why, sizeof why, "%.500s: %s", r->file.path,
			stale ? "the store took its memory back meanwhile" : strerror(r->failed));
		fail(r, RESTORE_FAILED_STORAGE, why);
		return;
	}
	r->piece++;
	get_next(r);
}

static void on_piece(void *user, const struct kvclient_answer *a)
{
	struct restore *r = user;
	CGN_LIVE(r, RESTORE_TAG);
	r->lease = a->lease;
	if (a->err->code != CGN_FINE) {
		fail(r, a->err->code == CGN_NOT_FOUND ? RESTORE_FAILED_STATE_GONE : RESTORE_FAILED_STORAGE,
			a->err->msg);
		return;
	}
	const struct block_info *info = kvclient_lease_info(r->lease);
	if (info->size != slot_entry_piece(&r->slot_entry, r->piece).bytes ||
		info->checksum != r->slot_entry.sums[r->piece]) {
		fail(r, RESTORE_FAILED_STATE_GONE, "another state was put in its place meanwhile");
		return;
	}
	r->on_pool = cgn_ok(cgn_loop_work(r->keep->e->agent->loop, write_work, written, r));
	if (!r->on_pool)
		fail(r, RESTORE_FAILED_STORAGE, "no memory");
}

/* What computing it would take: a peer that is slower than that is not asked. */
static uint32_t worth_of(const struct keep *k, const struct slot_entry *c, enum slots_from from)
{
	double ms = k->pace.prefill_ms * c->prompt;
	if (from != SLOTS_FROM_PEER)
		return KVCLIENT_HERE_ONLY;
	return !(ms > 0) ? KVCLIENT_WHATEVER : ms < 1 ? 1 : ms < 1e6 ? (uint32_t)ms : (uint32_t)1e6;
}

static void get_next(struct restore *r)
{
	if (r->piece == slot_entry_pieces(&r->slot_entry))
		ask_if_same(r);
	else
		kvclient_series_next(r->pieces);
}

static void key_of_piece(void *user, size_t i, struct block_key *out)
{
	const struct restore *r = user;
	*out = slotmgr_key(r->keep->keys.slot_entry, slot_entry_id(&r->slot_entry), (uint32_t)i + 1);
}

/* ---- begin ---- */

struct restore *restore_start(struct keep *k, uint32_t slot, const struct slot_entry *c, enum slots_from from,
	void (*done)(void *user, const struct restore_result *r), void *user)
{
	size_t pieces = slot_entry_pieces(c);
	struct restore *r = calloc(1, sizeof *r);
	uint64_t *words = malloc((c->n + pieces) * sizeof *words);
	if (r == NULL || words == NULL || slotmgr_kvclient(k) == NULL) {
		free(r);
		free(words);
		return NULL;
	}
	memcpy(words, c->sums, pieces * sizeof *words);
	memcpy(words + pieces, c->chain, c->n * sizeof *words);
	*r = (struct restore){.tag = RESTORE_TAG,
		.keep = k,
		.loop = k->e->agent->loop,
		.epoch = k->epoch,
		.slot = slot,
		.from = from,
		.done = done,
		.user = user,
		.slot_entry = *c,
		.words = words,
		.began = cgn_clock_now()};
	r->slot_entry.sums = words;
	r->slot_entry.chain = words + pieces;
	slot_file_begin(k, "load", &r->file);
	const struct kvclient_series_cfg cfg = {.n = pieces,
		.key = key_of_piece,
		.worth_ms = worth_of(k, c, from),
		.done = on_piece,
		.user = r};
	if (!cgn_ok(kvclient_series_new(slotmgr_kvclient(k), &cfg, &r->pieces, NULL))) {
		slot_file_end(&r->file);
		free(words);
		free(r);
		return NULL;
	}
	cgn_list_push(&k->restores_now, &r->link);
	return r;
}

void restore_leave(struct restore **take)
{
	struct restore *r = *take;
	*take = NULL;
	if (r == NULL)
		return;
	CGN_LIVE(r, RESTORE_TAG);
	r->done = NULL;
}

void restore_stop(struct cgn_link *job)
{
	struct restore *r = CGN_CONTAINER(job, struct restore, link);
	CGN_LIVE(r, RESTORE_TAG);
	retire(r);
}
