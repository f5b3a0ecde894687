/* SPDX-License-Identifier: Apache-2.0 */
/* listwatch: follow a set of items that a server keeps: list all items at one revision, then watch the changes
 * after that revision. After an error the watch resumes at its revision, with backoff. When the server no longer
 * has the changes since that revision (a compaction), or is another server with another history, all items are
 * listed again. The source (etcd, Kubernetes) sends the calls and delivers the items to its user; listwatch decides which
 * call is next, and tells the user the rest. Embedded in the source; belongs to its loop. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "io/os/loop/backoff.h"
#include "io/os/loop/loop.h"

/* Calls to the source. list, watch and probe start one call and return; they may report its failure inline. */
struct listwatch_ops {
	/* Request a page of items: the first page if |revision| is 0, else the next page, as of |revision|. Leads
	 * to listwatch_page and listwatch_page_end, or to listwatch_failed. */
	void (*list)(void *source, int64_t revision);
	/* Open the stream of the changes after |revision|. Leads to listwatch_opened, or to a failure. */
	void (*watch)(void *source, int64_t revision);
	/* Check that the server behind the open stream still works. Leads to listwatch_probed, or to a failure. */
	void (*probe)(void *source);
	/* Cancel every call in flight. Nothing is reported for a cancelled call. */
	void (*stop)(void *source);
};
/* Calls to the source's user. */
struct listwatch_news {
	/* All items are delivered between begin and end: at the start, and when they are listed again. An item that is
	 * not delivered is gone. A second begin starts the snapshot over. */
	void (*on_snapshot_begin)(void *user);
	void (*on_snapshot_end)(void *user);
	/* The stream is open, or it failed for the reason |why|. Called at changes only. A stream that opens again misses
	 * nothing: it begins at its revision. */
	void (*on_connected)(void *user, bool connected, const char *why);
};
/* All pointers are borrowed. */
struct listwatch_cfg {
	const struct listwatch_ops *ops;
	void *source;
	const struct listwatch_news *news;
	void *user;
	struct cgn_backoff backoff;
	cgn_nsec probe_interval;
};

enum listwatch_state {
#define STATE(id, exits, why) LISTWATCH_##id,
#include "io/wire/listwatch/states.def"
#undef STATE
};

struct listwatch {
	uint32_t tag;
	enum listwatch_state state;
	struct listwatch_cfg cfg; /* The backoff is at its present step. */
	int64_t revision;       /* Revision of the list, then of the last change delivered; 0: list again. */
	struct cgn_timer timer; /* The next attempt, or the next probe. */
	bool connected, told;   /* The last on_connected; |told|: there was one. */
};
/* Start on the loop's next turn. */
void listwatch_init(struct listwatch *w, struct cgn_loop *l, const struct listwatch_cfg *cfg);
/* Cancel the calls in flight and the timer. */
void listwatch_fini(struct listwatch *w);

/* ---- reports of the source ---- */
/* A page arrived that shows the items at |revision| (above 0). Call before the page's items are delivered. */
void listwatch_page(struct listwatch *w, int64_t revision);
/* The page's items were delivered. |more|: request the next page; else the list is complete. */
void listwatch_page_end(struct listwatch *w, bool more);
/* The server confirmed the stream of changes. */
void listwatch_opened(struct listwatch *w);
/* Every change up to |revision| was delivered. */
void listwatch_seen(struct listwatch *w, int64_t revision);
/* The probe succeeded. */
void listwatch_probed(struct listwatch *w);
/* A call failed: try again after the backoff, from the same revision. A list starts over. */
void listwatch_failed(struct listwatch *w, const struct cgn_err *why);
/* The server ended the stream in order, because a stream has a longest time: open it again at the revision. */
void listwatch_ended(struct listwatch *w);
/* The server no longer has the changes after the revision: list again at once. */
void listwatch_compacted(struct listwatch *w);
/* The revision means nothing to this server: list again after the backoff, because a replica that merely lags
 * behind answers the same for a moment. */
void listwatch_foreign(struct listwatch *w, const struct cgn_err *why);
