/* SPDX-License-Identifier: Apache-2.0 */
/* budgets: the spent amounts of tenants and keys, shared by all workers, and its file in cluster.state_dir
 * (book.c).
 *
 * The file is written a second after a change, off the loop, and at the end, without the reservations of requests under way.
 * A router that was killed takes the rows since the last write from the journal of usage, which has the requests that were
 * under way too: its budgets agree with its usage. Budgets of peers are not in the journal: a reservation of theirs
 * that is not settled counts as used in full, and those of about the last second are forgotten. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/who/budget/budget.h"

struct gw_budgets;
/* Read the file |path|, if there is one. One that cannot be used is renamed to |path|.bad, with a line in the log;
 * nothing is spent then. */
struct gw_budgets *gw_budgets_open(struct cgn_loop *l, const char *path);
/* Write the file if anything has changed, and free. NULL-safe; no worker runs. */
void gw_budgets_close(struct gw_budgets **take);
/* Return the digest of the file that was read; 0: there was none. */
uint64_t gw_budgets_digest(const struct gw_budgets *b);
/* Count a row of the journal that the file lacks, as gw_usage_budgets says; |arg|: the budgets. */
struct billing_names;
struct billing_amounts;
void gw_budgets_spend(void *arg, const struct billing_names *names, uint64_t unix_s,
	const struct billing_amounts *used);
/* Tell the journal of |usage|, which is borrowed, from now on what the file has. Before the first worker runs. */
struct gw_usage;
void gw_budgets_journal(struct gw_budgets *b, struct gw_usage *usage);
/* Once a second, on the loop: write the file in the background if anything has changed. Returns how many requests were
 * not counted because the book is full. */
uint64_t gw_budgets_tick(struct gw_budgets *b);
/* Copy the account of |name|, brought to now; false: it has spent nothing. Any thread. */
bool gw_budgets_get(struct gw_budgets *b, struct cgn_str name, struct budget_account *out);
/* Reserve, settle and learn, as policy/who/budget says; any thread. */
bool gw_budgets_reserve(struct gw_budgets *b, struct cgn_str name, const struct budget_set *s,
	const struct budget_amounts *want, struct budget_answer *answers, struct budget_held *held);
void gw_budgets_return(struct gw_budgets *b, struct cgn_str name, const struct budget_held *held,
	const struct budget_amounts *used);
void gw_budgets_learn(struct gw_budgets *b, struct cgn_str name, const struct budget *of, uint64_t number,
	uint64_t spent);
