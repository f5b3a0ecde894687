/* SPDX-License-Identifier: Apache-2.0 */
/* calibration: how sure small models' answers are, learned from a share of the prompts, which are asked again of two models
 * (policy/answer/cascade/calibration.h, compare.h).
 *
 * The second asking is a pair of requests to this router's own gateway, by a thread of its own (ask.c): with X-Cgn-Priority 0 and
 * Prefer: if-available, so that it never waits before a client's. They belong to the client's tenant, where the tenant's nodes are
 * its own; they count in no rate limit, budget or usage, leave the cluster for no peer, and no hook sees them: the client's
 * request has passed all of these.
 *
 * Bounds: CALIBRATION_MODELS pairs of models, 10 KiB each, 1 MiB of a file; CALIBRATION_WAITING prompts of at most CALIBRATION_BODY_MAX bytes wait,
 * two bodies each; one pair of answers at a time, of at most CALIBRATION_ANSWER_MAX bytes each, and a judge's of as many. */
#pragma once
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"
#include "policy/answer/cascade/calibration.h"
#include "router/request/request/request.h"

#define CALIBRATION_MODELS     16
#define CALIBRATION_WAITING    16
#define CALIBRATION_BODY_MAX   ((size_t)256 * 1024)
#define CALIBRATION_ANSWER_MAX ((size_t)1024 * 1024)
#define CALIBRATION_CALL_LIMIT (300 * CGN_SEC) /* for each answer */

struct gw_calibrations;
/* |judge_model| (NULL: none) and |judge_similarity| are those of the asker. */
struct gw_calibrations *gw_calibrations_open(struct telemetry *t, const char *judge_model,
	double judge_similarity);
void gw_calibrations_close(
	struct gw_calibrations **take); /* NULL-safe; no worker runs. On the control loop. */

/* kept.c, on the control loop |l|: read the calibrations from the file |path|, and keep them there: the file
 * is written five seconds after a change at the latest, and at the end. A file that cannot be used is set
 * aside. */
void gw_calibrations_keep(struct gw_calibrations *c, struct cgn_loop *l, const char *path);
/* Call with each view and each rules before workers have them, and once a second: calibrations of other
 * models, of other engines, or with other settings are forgotten, which is logged. |c| NULL: does nothing. */
void gw_calibrations_follow(struct gw_calibrations *c, const struct cluster_view *v,
	const struct gw_cascade_rules *rules);

/* May the small model answer clients, and by which curve? Any thread. |c| NULL: it may not. */
enum calibration_trust gw_calibrations_get(struct gw_calibrations *c, struct cgn_str small,
	struct cgn_str large, struct calibration_curve *out);
/* The small model's answer of that doubt was judged for a client; any thread. |c| NULL: does nothing. */
void gw_calibrations_saw(struct gw_calibrations *c, struct cgn_str small, struct cgn_str large, double doubt,
	bool passed);
/* Fill in each pair and its curve; any thread. |c| NULL: nothing is asked again. */
void gw_calibrations_fill(struct gw_calibrations *c, struct pb_tree *t, Cognitora__V1__CascadesResponse *to);

/* ---- for requests, on their workers ---- */

/* The request's cascade begins: decide whether its prompt is asked again. */
void gw_calibration_draw(struct gw_req *r);
/* The answer begins, and the body is still there: ask again if that was decided. */
void gw_calibration_offer(struct gw_req *r);
/* Is |token| that of a request of calibration? Then |*tenant| is whose prompt it is; borrowed from |token|. */
bool gw_calibration_is_own(const struct gw_calibrations *c, struct cgn_str token, struct cgn_str *tenant);

/* ---- ask.c ---- */

struct gw_calibration_asker;
struct gw_calibration_asker_cfg {
	const char *addr; /* the gateway */
	struct tls_ctx *tls;
	const char *server_name; /* NULL: the host of |addr| */
	const char *judge_model; /* embedding model; NULL: none */
	double judge_similarity; /* least cosine of texts that say the same */
	struct gw_shared *shared;
};
CGN_RC gw_calibration_asker_new(const struct gw_calibration_asker_cfg *cfg, struct gw_calibration_asker **out,
	struct cgn_err *err);
/* Prompts that wait are forgotten. NULL-safe. */
void gw_calibration_asker_free(struct gw_calibration_asker **take);
