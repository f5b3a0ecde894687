/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/text/refusal.h"

#include <stdarg.h>
#include <stdio.h>

bool sim_refuse(struct sim_refusal *no, int status, const char *code, const char *param, const char *fmt, ...)
{
	no->status = status;
	no->code = code;
	no->param = param;
	no->type = status == 404 ? "NotFoundError" : status < 500 ? "BadRequestError" : "InternalServerError";
	if (status == 503)
		no->type = "ServiceUnavailableError";
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(no->msg, sizeof no->msg, fmt, ap);
	va_end(ap);
	return false;
}
