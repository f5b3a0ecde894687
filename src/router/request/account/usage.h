/* SPDX-License-Identifier: Apache-2.0 */
/* usage: tokens, money and energy by hour, tenant, key and model, shared by all workers, and its files in
 * cluster.state_dir: one a day, of the last 32 days. The file of the day is written GW_USAGE_EVERY after a
 * change, off the loop, and at the end; what ended since is in a journal (usagejournal.h). Files are deleted
 * by the clock of deletions (router/shared/age), and a wall clock that jumps to another day meets what the day's
 * file has. Each day that it passes between two ticks is written. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/who/billing/billing.h"

#define GW_USAGE_EVERY (5 * CGN_SEC)

struct gw_age;
struct gw_usage;
/* The budgets, which are restored from the journal too. */
struct gw_usage_budgets {
	uint64_t digest; /* usage_journal_digest of their file; 0: there is none */
	/* Count |used|, of |names| at the instant |unix_s|. */
	void (*spend)(void *arg, const struct billing_names *names, uint64_t unix_s,
		const struct billing_amounts *used);
	void *arg;
};
/* The files are |path|-DAY, DAY the days since 1970. Reads them; one that is damaged is renamed to .bad. |budgets| may be NULL. */
struct gw_usage *gw_usage_open(struct cgn_loop *l, const char *path, struct gw_age *age,
	const struct gw_usage_budgets *budgets);
void gw_usage_close(struct gw_usage **take); /* Writes changed days. NULL-safe; no worker runs. */
/* Once a second, on the loop. */
void gw_usage_tick(struct gw_usage *u);
/* Add to the hour that it is now; any thread. |place|: of the request, which ends with it; NULL: it has none. */
struct usage_place;
void gw_usage_add(struct gw_usage *u, const struct billing_names *names, const struct billing_amounts *more,
	struct usage_place *place);
/* The request of |place| has used |now| so far: that is added if the router dies before the request ends. Any thread. */
void gw_usage_put(struct gw_usage *u, const struct billing_names *names, const struct billing_amounts *now,
	struct usage_place *place);
/* The request of |place| has ended, and nothing is added for it. Any thread. */
void gw_usage_drop(struct gw_usage *u, struct usage_place *place);
/* The budgets' text with |digest| has the rows until now, and is going to be their file; |saved|: it is. Any thread. */
void gw_usage_budgets_mark(struct gw_usage *u, uint64_t digest, bool saved);
/* Make a report, which is the caller's also where this fails. TOO_LARGE, NO_MEMORY. Any thread. */
CGN_RC gw_usage_report(struct gw_usage *u, const struct billing_query *q, struct billing_report **out,
	struct cgn_err *err);
