/* SPDX-License-Identifier: Apache-2.0 */
/* set_policy: shows and changes the policy and weights of running routers. */
#include <string.h>

#include "base/pb/pb.h"
#include "base/pb/pb_json.h"
#include "cognitora/v1/control.pb-c.h"
#include "ctl/cluster/policy.h"
#include "ctl/ctl.h"
#include "joint/ctl/client/client.h"

#define DEFAULT_TIMEOUT (10 * CGN_SEC)
#define MAX_WEIGHTS     16

struct changes {
	Cognitora__V1__SetPolicyRequest rq;
	Cognitora__V1__Weight rows[MAX_WEIGHTS], *list[MAX_WEIGHTS];
	char policy[128], names[MAX_WEIGHTS][32];
};

static CGN_RC weight_add(struct changes *c, struct cgn_str name, struct cgn_str text, struct cgn_err *err)
{
	struct json_val v;
	size_t i = c->rq.n_weights;
	if (i == MAX_WEIGHTS)
		return CGN_FAIL(err, INVALID, "more than %d weights", MAX_WEIGHTS);
	cognitora__v1__weight__init(&c->rows[i]);
	if (!cgn_str_copyz(c->names[i], sizeof c->names[i], name))
		return CGN_FAIL(err, INVALID,
			"there is no weight \"%.*s\"; they are kv, load, power and capacity",
			CGN_STR_ARG(name));
	if (!cgn_ok(json_parse(text, &v, NULL, NULL)) || !json_f64(v, &c->rows[i].value))
		return CGN_FAIL(err, INVALID, "the weight %s is \"%.*s\": it must be a number from 0 to 1",
			c->names[i], (int)(text.n < 40 ? text.n : 40), text.p);
	c->rows[i].name = c->names[i];
	c->list[i] = &c->rows[i];
	c->rq.n_weights = i + 1;
	c->rq.weights = c->list;
	return CGN_OK;
}

static CGN_RC weights_of(const struct ctl_args *a, struct changes *c, struct cgn_err *err)
{
	const char *list = ctl_flag(a, "--weights");
	struct cgn_str rest = cgn_str_of(list);
	while (list != NULL && rest.p != NULL) {
		struct cgn_str value = cgn_str_trim(cgn_str_split(&rest, ',')),
			       name = cgn_str_split(&value, '=');
		if (value.p == NULL)
			return CGN_FAIL(err, INVALID,
				"--weights is \"%.100s\": it must be like kv=0.5,load=0.3,power=0.1,capacity=0.1",
				list);
		CGN_TRY(weight_add(c, name, value, err));
	}
	return CGN_OK;
}

static CGN_RC changes_of(const struct ctl_args *a, struct changes *c, struct cgn_err *err)
{
	const char *policy = ctl_flag(a, "--policy");
	cognitora__v1__set_policy_request__init(&c->rq);
	c->rq.reset = ctl_switch(a, "--reset");
	if (policy != NULL &&
		(policy[0] == '\0' || !cgn_str_copyz(c->policy, sizeof c->policy, cgn_str_of(policy))))
		return CGN_FAIL(err, INVALID, "--policy \"%.100s\" is not the name of a policy", policy);
	if (policy != NULL)
		c->rq.policy = c->policy;
	return weights_of(a, c, err);
}

void ctl_policy_text(const Cognitora__V1__PolicyStatus *s, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "policy    %s (from %s)\n", ctl_shown(s->policy), ctl_shown(s->policy_from));
	cgn_buf_fmt(out, "weights   kv %g, load %g, power %g, capacity %g (from %s)%s\n", s->kv, s->load,
		s->power, s->capacity, ctl_shown(s->weights_from),
		strcmp(s->policy, "weighted") == 0 ? "" : "; they count with policy weighted");
	if (s->trouble[0] != '\0')
		cgn_buf_fmt(out, "TROUBLE   what stands in %s now is not obeyed: %s\n", ctl_shown(s->where),
			ctl_shown(s->trouble));
}

void ctl_policy_json(const Cognitora__V1__PolicyStatus *s, struct json_out *o)
{
	json_open(o, '{');
	pb_json_members(o, s, "policy policy_from");
	json_key(o, "weights");
	pb_json_select(o, s, "kv load power capacity");
	pb_json_members(o, s, "weights_from where trouble");
	json_close(o, '}');
}

CGN_RC ctl_cluster_set_policy(const struct ctl_args *a, struct cgn_err *err)
{
	struct changes c = {.policy = ""};
	Cognitora__V1__PolicyStatus *status = NULL;
	struct ctl_call call = {.method = "SetPolicy",
		.answer = &cognitora__v1__policy_status__descriptor,
		.request = &c.rq,
		.first = &status};
	struct cgn_buf out = {0};
	struct json_out o = json_out_to(&out);
	CGN_TRY(changes_of(a, &c, err));
	CGN_TRY(ctl_timeout(a, DEFAULT_TIMEOUT, &call.timeout, err));
	CGN_TRY(ctl_client_call(a, CTL_ROUTER, &call, err));
	if (a->json) {
		ctl_policy_json(status, &o);
		cgn_buf_char(&out, '\n');
	} else {
		ctl_policy_text(status, &out);
	}
	pb_free(&status);
	return ctl_print(&out, err);
}
