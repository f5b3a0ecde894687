/* SPDX-License-Identifier: Apache-2.0 */
#include "base/apierror/apierror.h"

#include "base/json/json.h"

void apierror_put(struct cgn_buf *out, const struct apierror *e)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_open(&o, "error", '{');
	json_key_z(&o, "message", e->message);
	json_key_z(&o, "type", e->type);
	json_key(&o, "param");
	if (e->param != NULL)
		json_put_z(&o, e->param);
	else
		json_put_null(&o);
	json_key(&o, "code");
	if (e->code != NULL)
		json_put_z(&o, e->code);
	else
		json_put_i64(&o, e->status);
	json_close(&o, '}');
	json_close(&o, '}');
}

const char *apierror_type(int status)
{
	return status < 500 ? "invalid_request_error" : "server_error";
}
