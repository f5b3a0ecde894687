/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-operator: makes the InferenceClusters, ModelPools and RoutingPolicies of a Kubernetes real. Of several operators the one
 * that has the Lease acts. */
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "joint/daemon/svc/svc.h"
#include "operator/control/control.h"
#include "operator/metrics.h"

#define OPERATOR_TAG 0x0be7a700U

struct operator
{
	uint32_t tag;
	struct svc *svc;
	struct k8s *k8s;
	struct k8s_lease *lease;
	struct control *control; /* NULL: another operator acts. */
	struct cgn_hook turn;    /* Acts on a change of the lease. */
	char *space, *prefix, *image_tag;
};

static void operator_stop(void **take)
{
	struct operator* p = * take;
	*take = NULL;
	if (p == NULL)
		return;
	CGN_LIVE(p, OPERATOR_TAG);
	cgn_hook_drop(&p->turn);
	control_close(&p->control);
	k8s_lease_close(&p->lease);
	k8s_free(&p->k8s);
	free(p->space);
	free(p->prefix);
	free(p->image_tag);
	p->tag = 0;
	free(p);
}

/* ---- the lease ---- */

static void operator_turn(struct cgn_hook *h)
{
	struct operator* p = CGN_CONTAINER(h, struct operator, turn);
	const struct control_cfg cfg = {p->space, p->prefix, p->image_tag};
	struct cgn_err err;
	bool acts = k8s_lease_mine(p->lease);
	metric_set(METRIC_ONE(svc_telemetry(p->svc), OP_LEADER), acts);
	if (!acts) {
		control_close(&p->control);
	} else if (p->control == NULL &&
		!cgn_ok(control_open(svc_loop(p->svc), p->k8s, svc_telemetry(p->svc), &cfg, &p->control,
			&err))) {
		cgn_log(ERROR, "operator.not_started", F_STR("why", err.msg));
	}
}

/* Objects of a callback's caller must not be closed inside of it. */
static void on_lease(void *user, bool mine)
{
	struct operator* p = user;
	CGN_LIVE(p, OPERATOR_TAG);
	cgn_log(INFO, mine ? "operator.leads" : "operator.follows", F_STR("lease", "cgn-operator"));
	cgn_loop_defer(svc_loop(p->svc), &p->turn);
}

static void on_lease_trouble(void *user, const struct cgn_err *why)
{
	struct operator* p = user;
	CGN_LIVE(p, OPERATOR_TAG);
	cgn_log_limited(WARN, "operator.lease_unknown", F_STR("why", why->msg));
}

static const struct k8s_lease_ops lease_ops = {on_lease, on_lease_trouble};

static CGN_RC lease_open(struct operator* p, const struct config *cfg, struct cgn_err *err)
{
	char host[128] = "", identity[200];
	const char *space = cfg->cluster.kubernetes_namespace;
	(void)gethostname(host, sizeof host - 1);
	(void)snprintf(identity, sizeof identity, "%s-%ld", host, (long)getpid());
	const struct k8s_lease_cfg lease = {space != NULL ? space : k8s_namespace(p->k8s), "cgn-operator",
		identity, cfg->operator.lease / CGN_SEC * CGN_SEC };
	return k8s_lease_open(p->k8s, &lease, &lease_ops, p, &p->lease, err);
}

/* ---- the frame ---- */

static CGN_RC operator_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err)
{
	struct operator* p = CGN_NEW(struct operator);
	*p = (struct operator){.tag = OPERATOR_TAG, .svc = s };
	cgn_hook_init(&p->turn, operator_turn);
	p->space = cgn_str_dup_maybe(cfg->operator.namespace);
	p->prefix = cgn_str_dup_maybe(cfg->operator.image_prefix);
	p->image_tag = cgn_str_dup_maybe(cfg->operator.image_tag != NULL ? cfg->operator.image_tag : CGN_VERSION);
	cgn_rc rc = k8s_new(svc_loop(s), cfg->cluster.kubernetes_config, &p->k8s, err);
	if (cgn_ok(rc))
		rc = lease_open(p, cfg, err);
	if (!cgn_ok(rc)) {
		void *take = p;
		operator_stop(&take);
		return rc;
	}
	*state = p;
	return CGN_OK;
}

static void on_released(void *user)
{
	svc_drained(((struct operator*)user)->svc);
}

static void operator_drain(void *state)
{
	struct operator* p = state;
	CGN_LIVE(p, OPERATOR_TAG);
	control_close(&p->control);
	k8s_lease_release(p->lease, on_released, p);
}

static bool status_fill(void *state, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	const struct operator* p = state;
	Cognitora__V1__OperatorStatus *to = message;
	(void)r;
	CGN_LIVE(p, OPERATOR_TAG);
	to->leads = p->control != NULL;
	if (to->leads)
		control_fill(p->control, t, to->work = PB_NEW(t, operator_work));
	return true;
}

static void operator_check(const struct config *cfg, struct svc_problems *out)
{
	struct cgn_err err = {0};
	svc_check_cluster(out, cfg);
	if (cfg->cluster.kubernetes_config != NULL)
		svc_problem(out, k8s_check(cfg->cluster.kubernetes_config, &err), &err);
}

static const char *admin_addr(const struct config *cfg)
{
	return cfg->operator.listen;
}

static cgn_nsec drain_timeout(const struct config *cfg)
{
	(void)cfg;
	return 5 * CGN_SEC;
}

static const struct svc_flag flags[] = {
	{"listen", "operator.listen", "ADDR", "HTTP address of /metrics, /healthz, /readyz and /status"},
	{"namespace", "operator.namespace", "NAME", "reconcile the resources of this namespace only"},
	{"kubeconfig", "cluster.kubernetes_config", "FILE", "kubeconfig in JSON, outside of a pod"},
};

static const struct metric_row metric_rows[] = {
#define METRIC METRIC_ROW
#include "operator/metrics.def"
#undef METRIC
};

static const struct svc_admin_route routes[] = {
#define DOCUMENT SVC_DOCUMENT
#include "operator/documents.def"
#undef DOCUMENT
};

int main(int argc, char **argv)
{
	static const struct svc_program program = {
		.name = "cgn-operator",
		.summary =
			"makes the InferenceClusters, ModelPools and RoutingPolicies of a Kubernetes real: routers, engines with agents, their configuration and rights",
		.examples = "  cgn-operator\n  cgn-operator --kubeconfig admin.json --namespace inference\n",
		.flags = flags,
		.n_flags = CGN_COUNT(flags),
		.admin = {"operator.listen", admin_addr},
		.drain_timeout = drain_timeout,
		.routes = routes,
		.n_routes = CGN_COUNT(routes),
		.start = operator_start,
		.metrics = metric_rows,
		.n_metrics = CGN_COUNT(metric_rows),
		.check = operator_check,
		.drain = operator_drain,
		.stop = operator_stop,
	};
	return svc_main(&program, argc, argv);
}
