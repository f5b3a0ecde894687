/* SPDX-License-Identifier: Apache-2.0 */
/* budgets: files and metrics of budgets, usage and sessions. Control loop. */
#pragma once

struct gw_rules;
struct router;

void router_budgets_report(
	struct router *r); /* Once a second: files and metrics of budgets, usage and sessions. */
/* After the rules were replaced: forget the metrics of budgets that |before| has (NULL: there were no rules) and the
 * rules of now have not. */
void router_budgets_changed(struct router *r, const struct gw_rules *before);
