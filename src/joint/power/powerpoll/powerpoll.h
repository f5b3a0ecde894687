/* SPDX-License-Identifier: Apache-2.0 */
/* powerpoll: the sources of power that a program reads: BMCs by Redfish and IPMI, Prometheus texts of nodes (DCGM's
 * exporter, agents), and its own machine. Shows their readings as metrics and as JSON, and what each node draws. A reading
 * that is not fresh is counted as such, and its series is not shown; a source that fails is logged when its reason changes. One loop, its thread; never waits for a device.
 * At most 2,400 sources; memory: some 170 KiB a BMC, 15 KiB a text. */
#pragma once
#include "cognitora/v1/power.pb-c.h"
#include "io/os/loop/loop.h"
#include "joint/daemon/svc/svc.h"
#include "joint/power/ipmi/ipmi.h"
#include "joint/power/powerfetch/powerfetch.h"
#include "joint/power/powersrc/host.h"
#include "joint/power/redfish/redfish.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/config/config.h"

#define POWERPOLL_MAX_SOURCES 2400

struct powerpoll;
/* Append at most |cap| readings of now; returns their number. */
typedef size_t powerpoll_reader(void *user, cgn_nsec now, struct power_reading *out, size_t cap);

struct powerpoll *powerpoll_new(struct cgn_loop *l, struct telemetry *t);
/* Add readings that the program makes itself, each second, of the node |node|. |name|: of the source in metrics and logs, a
 * constant. CGN_OVERLOADED: there are too many sources. */
CGN_RC powerpoll_add_reader(struct powerpoll *p, const char *node, const char *name, powerpoll_reader *fn,
	void *user, struct cgn_err *err);
/* Take the readings in a text of |node| that was scraped just now; a text without power is ignored. They are fresh for
 * |max_age|, and a node that brings none for 20 times as long is forgotten. */
void powerpoll_take_text(struct powerpoll *p, const char *node, struct cgn_str text, cgn_nsec max_age);
/* Bring the sources of the settings ([metrics], [bmcs]) up to date: open those that are new or changed, then close those
 * that are no more. A source whose settings and files are as before is left alone, with its session and its readings. On
 * failure nothing has changed; the message names the setting. */
CGN_RC powerpoll_configure(struct powerpoll *p, const struct config *cfg, struct cgn_err *err);
/* For --check: note errors in the settings. */
void powerpoll_check(const struct config *cfg, struct svc_problems *out);
/* Sum up the power of |node| now, as power_sum_of. */
bool powerpoll_sum(struct powerpoll *p, const char *node, struct power_sum *out);
/* Fill the power of nodes and each reading with its age and its state. */
void powerpoll_fill(struct powerpoll *p, struct pb_tree *t, Cognitora__V1__Power *to);
/* End the sources, sessions at BMCs too, within 2 s, and free everything; then call |done|, which may be NULL, maybe
 * inline. NULL-safe: |done| is called. */
void powerpoll_close(struct powerpoll **take, void (*done)(void *arg), void *arg);
