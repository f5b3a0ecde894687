/* SPDX-License-Identifier: Apache-2.0 */
/* batch: its settings: hours, the price, and the bucket. */
#include "policy/answer/batch/batch.h"
#include "policy/answer/batch/hours.h"
#include "policy/config/config.h"

/* The prefix is part of a URL that is signed: characters that need no escape. */
static cgn_rc check_batch_bucket(const struct config *c, struct cgn_err *err)
{
	const struct {
		const char *key, *value;
	} needed[] = {{"batch.s3_endpoint", c->batch.s3_endpoint}, {"batch.s3_bucket", c->batch.s3_bucket},
		{"batch.s3_credentials_file", c->batch.s3_credentials_file}};
	for (size_t i = 0; i < CGN_COUNT(needed); i++)
		if (needed[i].value == NULL)
			return CGN_FAIL(err, INVALID, "%s: batch.storage = \"s3\" needs %s",
				config_origin(c, "batch.storage"), needed[i].key);
	struct cgn_str url = cgn_str_of(c->batch.s3_endpoint);
	const char *host = strstr(c->batch.s3_endpoint, "://");
	if (!(cgn_str_starts(url, "http://") || cgn_str_starts(url, "https://")) || host == NULL ||
		host[3] == '\0' || strchr(host + 3, '/') != NULL)
		return CGN_FAIL(err, INVALID,
			"%s: batch.s3_endpoint is \"%.100s\", must be http[s]://HOST[:PORT]",
			config_origin(c, "batch.s3_endpoint"), c->batch.s3_endpoint);
	const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";
	if (strspn(c->batch.s3_prefix, plain) != strlen(c->batch.s3_prefix) || c->batch.s3_prefix[0] == '/' ||
		strspn(c->batch.s3_bucket, plain) != strlen(c->batch.s3_bucket) ||
		strchr(c->batch.s3_bucket, '/') != NULL)
		return CGN_FAIL(err, INVALID,
			"%s: batch.s3_bucket and batch.s3_prefix have letters, digits, '.', '_' and '-' (the prefix '/' too, not first)",
			config_origin(c, "batch.s3_prefix"));
	return CGN_OK;
}

CGN_RC batch_check_config(const struct config *c, struct cgn_err *err)
{
	struct batch_hours hours = {.n = 0};
	struct cgn_err why;
	for (size_t i = 0; i < c->batch.hours.n; i++)
		if (!cgn_ok(batch_hours_add(&hours, cgn_str_of(c->batch.hours.v[i]), &why)))
			return CGN_FAIL(err, INVALID, "%s: batch.hours: %s", config_origin(c, "batch.hours"),
				why.msg);
	if (c->batch.storage == BATCH_STORAGE_S3)
		CGN_TRY(check_batch_bucket(c, err));
	if (c->batch.max_price > 0 && c->router.energy.series == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: batch.max_price needs router.energy.series, which says what energy costs",
			config_origin(c, "batch.max_price"));
	return CGN_OK;
}
