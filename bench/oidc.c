/* SPDX-License-Identifier: Apache-2.0 */
/* bench oidc: tokens of an identity provider: nanoseconds to take a token apart, and to check a signature of each
 * algorithm. The signatures are those of RFC 7515 and RFC 8037. Prints one JSON object. */
#include <stdlib.h>
#include <time.h>

#include "base/codec/codec.h"
#include "base/json/json.h"
#include "io/net/pki/signature.h"
#include "policy/who/jwt/jwt.h"

#define ROUNDS 2000

static const struct {
	const char *name;
	enum pki_scheme scheme;
	const char *modulus, *x, *y, *text, *signature;
} rows[] = {
	{"rs256", PKI_RS256,
		"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
		"", "",
		"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
		"cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"},
	{"es256", PKI_ES256, "", "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
		"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
		"eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
		"DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"},
	{"eddsa", PKI_EDDSA, "", "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "",
		"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
		"hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"},
};

static uint64_t now_ns(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * CGN_SEC + (uint64_t)t.tv_nsec;
}

static struct cgn_str text_decode(struct cgn_buf *b, const char *text)
{
	if (!base64_get(b, cgn_str_of(text)) && text[0] != '\0')
		abort();
	return cgn_buf_view(b);
}

static double signature_ns(size_t i)
{
	struct cgn_buf m = {0}, x = {0}, y = {0}, s = {0};
	const struct pki_numbers key = {text_decode(&m, rows[i].modulus), {"\1\0\1", 3},
		text_decode(&x, rows[i].x), text_decode(&y, rows[i].y)};
	(void)text_decode(&s, rows[i].signature);
	uint64_t from = now_ns();
	for (int k = 0; k < ROUNDS; k++)
		if (!cgn_ok(pki_signature_check(rows[i].scheme, &key, cgn_str_of(rows[i].text),
			    cgn_buf_view(&s), NULL)))
			abort();
	double ns = (double)(now_ns() - from) / ROUNDS;
	cgn_buf_fini(&m);
	cgn_buf_fini(&x);
	cgn_buf_fini(&y);
	cgn_buf_fini(&s);
	return ns;
}

static double read_ns(const char *token)
{
	uint64_t from = now_ns();
	for (int k = 0; k < ROUNDS; k++) {
		struct jwt t = {0};
		if (!cgn_ok(jwt_read(cgn_str_of(token), &t, NULL)))
			abort();
		jwt_fini(&t);
	}
	return (double)(now_ns() - from) / ROUNDS;
}

int main(void)
{
	struct cgn_buf b = {0}, token = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	cgn_buf_fmt(&token, "%s.%s", rows[0].text, rows[0].signature);
	json_key_f64(&o, "read_ns", read_ns(cgn_buf_z(&token)));
	json_key_open(&o, "signature_ns", '{');
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		json_key_f64(&o, rows[i].name, signature_ns(i));
	json_close(&o, '}');
	json_close(&o, '}');
	(void)puts(cgn_buf_z(&b));
	cgn_buf_fini(&b);
	cgn_buf_fini(&token);
	return 0;
}
