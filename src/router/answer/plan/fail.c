/* SPDX-License-Identifier: Apache-2.0 */
/* fail: the end of a plan that has no answer. */
#include <stdarg.h>
#include <stdio.h>

#include "router/answer/answer/relay.h"
#include "router/answer/answer/resume.h"
#include "router/answer/plan/legs.h"

/* Return the label of cgn_resumes_total for an answer that is not continued. */
static const char *resume_outcome(const char *code)
{
	static const char *const waited[] = {"overloaded", "queue_full", "queue_timeout", "power_budget",
		"draining"};
	for (size_t i = 0; i < CGN_COUNT(waited); i++)
		if (strcmp(code, waited[i]) == 0)
			return "no_room";
	return strcmp(code, "no_node") == 0 ? "no_node" : "failed";
}

static enum gw_step resume_fail(struct gw_req *r, const struct gw_refusal *how, const char *message)
{
	gw_resume_deny(r, resume_outcome(how->code), message);
	return gw_relay_cut(r, message);
}

enum gw_step gw_plan_fail(struct gw_req *r, const struct gw_refusal *how, const char *fmt, ...)
{
	char message[600];
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(message, sizeof message, fmt, ap);
	va_end(ap);
	return r->answer.head_sent ? resume_fail(r, how, message) : gw_refuse(r, how, "%s", message);
}
