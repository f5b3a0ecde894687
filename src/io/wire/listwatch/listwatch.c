/* SPDX-License-Identifier: Apache-2.0 */
#include "io/wire/listwatch/listwatch.h"
#include "base/unlikely/unlikely.h"

#define LISTWATCH_TAG 0x115700a7U

static const unsigned exits[] = {
#define TO(id)               1U << LISTWATCH_##id
#define STATE(id, next, why) [LISTWATCH_##id] = (next),
#include "io/wire/listwatch/states.def"
#undef STATE
#undef TO
};

/* Only this function writes the state. */
static void listwatch_move(struct listwatch *w, enum listwatch_state to)
{
	CGN_MUST(exits[w->state] & 1U << to);
	w->state = to;
}

static void connected_tell(struct listwatch *w, bool connected, const char *why)
{
	if (w->told && w->connected == connected)
		return;
	w->told = true;
	w->connected = connected;
	w->cfg.news->on_connected(w->cfg.user, connected, why);
}

static void list_start(struct listwatch *w)
{
	listwatch_move(w, LISTWATCH_LISTING);
	cgn_timer_cancel(&w->timer);
	w->revision = 0;
	w->cfg.ops->list(w->cfg.source, 0);
}

static void stream_open(struct listwatch *w)
{
	listwatch_move(w, LISTWATCH_OPENING);
	cgn_timer_set(&w->timer, w->cfg.probe_interval);
	w->cfg.ops->watch(w->cfg.source, w->revision);
}

static void listwatch_fire(struct cgn_timer *t)
{
	struct listwatch *w = CGN_CONTAINER(t, struct listwatch, timer);
	CGN_LIVE(w, LISTWATCH_TAG);
	if (w->state != LISTWATCH_WAITING)
		w->cfg.ops->probe(w->cfg.source);
	else if (w->revision != 0 && !unlikely_way(UNLIKELY_list_again))
		stream_open(w);
	else
		list_start(w);
}

void listwatch_init(struct listwatch *w, struct cgn_loop *l, const struct listwatch_cfg *cfg)
{
	*w = (struct listwatch){.tag = LISTWATCH_TAG, .state = LISTWATCH_WAITING, .cfg = *cfg};
	cgn_timer_init(&w->timer, l, listwatch_fire);
	cgn_timer_set(&w->timer, 1);
}

void listwatch_fini(struct listwatch *w)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	w->cfg.ops->stop(w->cfg.source);
	cgn_timer_cancel(&w->timer);
	w->tag = 0;
}

void listwatch_page(struct listwatch *w, int64_t revision)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	CGN_MUST(w->state == LISTWATCH_LISTING);
	/* Later pages belong to the snapshot of the first one, and have its revision. */
	if (w->revision != 0)
		return;
	w->revision = revision;
	w->cfg.news->on_snapshot_begin(w->cfg.user);
}

void listwatch_page_end(struct listwatch *w, bool more)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	CGN_MUST(w->state == LISTWATCH_LISTING);
	if (more) {
		w->cfg.ops->list(w->cfg.source, w->revision);
		return;
	}
	w->cfg.news->on_snapshot_end(w->cfg.user);
	stream_open(w);
}

void listwatch_opened(struct listwatch *w)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	if (w->state != LISTWATCH_OPENING)
		return;
	listwatch_move(w, LISTWATCH_WATCHING);
	/* Here and not after the list: a server that lists but refuses to watch is not asked without a
	 * pause. */
	cgn_backoff_reset(&w->cfg.backoff);
	connected_tell(w, true, "");
}

void listwatch_seen(struct listwatch *w, int64_t revision)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	if (revision > w->revision)
		w->revision = revision;
}

void listwatch_probed(struct listwatch *w)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	cgn_timer_set(&w->timer,
		unlikely_way(UNLIKELY_probe_early) ? w->cfg.probe_interval / 10 : w->cfg.probe_interval);
}

void listwatch_failed(struct listwatch *w, const struct cgn_err *why)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	/* Half a list cannot be resumed: the next try lists from the beginning. */
	if (w->state == LISTWATCH_LISTING)
		w->revision = 0;
	w->cfg.ops->stop(w->cfg.source);
	listwatch_move(w, LISTWATCH_WAITING);
	cgn_timer_set(&w->timer, cgn_backoff_next(&w->cfg.backoff));
	connected_tell(w, false, why->msg);
}

void listwatch_ended(struct listwatch *w)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	CGN_MUST(w->state == LISTWATCH_WATCHING);
	w->cfg.ops->stop(w->cfg.source); /* A probe may be under way. */
	stream_open(w);
}

void listwatch_compacted(struct listwatch *w)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	w->cfg.ops->stop(w->cfg.source);
	list_start(w);
}

void listwatch_foreign(struct listwatch *w, const struct cgn_err *why)
{
	CGN_LIVE(w, LISTWATCH_TAG);
	w->revision = 0;
	listwatch_failed(w, why);
}
