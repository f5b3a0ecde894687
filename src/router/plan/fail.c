/* SPDX-License-Identifier: Apache-2.0 */
/* fail: the end of a plan that has no answer. */
#include <stdarg.h>
#include <stdio.h>

#include "router/answer/relay.h"
#include "router/answer/resume.h"
#include "router/plan/legs.h"

static enum gw_step resume_fail(struct gw_req *r, const struct gw_refusal *how, const char *message)
{
	gw_resume_count(r, strcmp(how->code, "no_node") == 0 ? "no_node" : "failed");
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
