/* SPDX-License-Identifier: Apache-2.0 */
/* budgets: the spent amounts of tenants and keys, shared by all workers, and its file in cluster.state_dir
 * (book.c).
 *
 * The file is written a second after a change, off the loop, and at the end. A router that is killed forgets
 * amounts that were reserved and used since the last write began: the requests of about the last second. An
 * earlier reservation that is not yet settled counts as used in full. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/who/budget/budget.h"

struct gw_budgets;
/* Read the file |path|, if there is one. One that cannot be used is renamed to |path|.bad, with a line in the log;
 * nothing is spent then. */
struct gw_budgets *gw_budgets_open(struct cgn_loop *l, const char *path);
/* Write the file if anything has changed, and free. NULL-safe; no worker runs. */
void gw_budgets_close(struct gw_budgets **take);
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
