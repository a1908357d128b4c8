/* What this library has and Linux's soft RoCE has not, or not in every release: regions registered anew, thread and parent domains, XRC
 * domains, the device's clock, registration on demand. */
#include "rule.h"
#include "pair.h"

static void rereg_rules(struct ibv_context *context)
{
	static char one[4096] __attribute__((aligned(4096))), two[8192] __attribute__((aligned(4096)));
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, one, sizeof one, IBV_ACCESS_LOCAL_WRITE);

	CHECK("mr-rereg", pd && other && mr);
	CHECK("mr-rereg", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, two, sizeof two, 0) == 0);
	CHECK("mr-rereg", mr->addr == two && mr->length == sizeof two);
	CHECK("mr-rereg", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, other, NULL, 0,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ) == 0);
	CHECK("mr-rereg", mr->pd == other && ibv_dealloc_pd(pd) == 0 && ibv_dealloc_pd(other) == EBUSY);
	ok("mr-rereg");

	errno = 0;
	CHECK("mr-rereg-err", ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK("mr-rereg-err", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)4096, 4096, 0) ==
				      IBV_REREG_MR_ERR_CMD && errno == EFAULT);
	CHECK("mr-rereg-err", mr->addr == two && mr->length == sizeof two);
	ok("mr-rereg-err");
	CHECK("mr-rereg", ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(other) == 0);
}

static void demand_rules(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	/* Nothing is there yet. */
	struct ibv_mr *mr = ibv_reg_mr(pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
	struct ibv_sge sge = { .addr = 4096, .length = 4096 };

	CHECK("mr-demand", mr != NULL);
	sge.lkey = mr->lkey;
	CHECK("mr-demand", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) == 0);
	CHECK("mr-demand", ibv_advise_mr(pd, 77, 0, &sge, 1) == EOPNOTSUPP);
	CHECK("mr-demand", ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	ok("mr-demand");
}

static void domain_rules(struct ibv_context *context)
{
	static char memory[64];
	struct ibv_td_init_attr none = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &none);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	struct ibv_mr *mr;

	CHECK("pd-parent", td && pd && parent && parent != pd && parent->context == context);
	mr = ibv_reg_mr(parent, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	CHECK("pd-parent", mr && mr->pd == parent);
	CHECK("pd-parent", ibv_dealloc_pd(parent) == EBUSY && ibv_dealloc_pd(pd) == EBUSY && ibv_dealloc_td(td) == EBUSY);
	CHECK("pd-parent", ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(parent) == 0);
	CHECK("pd-parent", ibv_dealloc_pd(pd) == 0 && ibv_dealloc_td(td) == 0);
	ok("pd-parent");
}

static struct ibv_xrcd *xrcd(struct ibv_context *context, int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd,
		.oflags = oflags,
	};

	errno = 0;
	return ibv_open_xrcd(context, &attr);
}

static void xrcd_rules(struct ibv_context *context)
{
	int file = open("/proc/self/exe", O_RDONLY), same = open("/proc/self/exe", O_RDONLY);
	struct ibv_xrcd *one, *two;

	CHECK("xrcd-file", !xrcd(context, file, 0) && errno == EAGAIN);
	one = xrcd(context, file, O_CREAT);
	two = xrcd(context, same, 0);
	CHECK("xrcd-file", one && two && one != two);
	CHECK("xrcd-file", !xrcd(context, same, O_CREAT | O_EXCL) && errno == EINVAL);
	CHECK("xrcd-file", ibv_close_xrcd(one) == 0 && ibv_close_xrcd(two) == 0);
	CHECK("xrcd-file", !xrcd(context, file, 0) && errno == EAGAIN);
	CHECK("xrcd-file", !xrcd(context, 1000000, O_CREAT) && errno == EBADF);
	ok("xrcd-file");

	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
		.cq = cq,
		.xrcd = xrcd(context, -1, O_CREAT),
	};
	CHECK("xrcd-busy", init.xrcd != NULL);
	struct ibv_srq *srq = ibv_create_srq_ex(context, &init);
	CHECK("xrcd-busy", srq && ibv_close_xrcd(init.xrcd) == EBUSY);
	CHECK("xrcd-busy", ibv_destroy_srq(srq) == 0 && ibv_close_xrcd(init.xrcd) == 0);
	CHECK("xrcd-busy", ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
	ok("xrcd-busy");
	close(file);
	close(same);
}

static void clock_rules(struct ibv_context *context)
{
	struct ibv_values_ex one = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, two = one;
	struct ibv_device_attr_ex attr;

	CHECK("device-clock", ibv_query_device_ex(context, NULL, &attr) == 0);
	CHECK("device-clock", attr.hca_core_clock > 0 && attr.completion_timestamp_mask != 0);
	CHECK("device-clock", ibv_query_rt_values_ex(context, &one) == 0 && ibv_query_rt_values_ex(context, &two) == 0);
	CHECK("device-clock", two.raw_clock.tv_nsec >= one.raw_clock.tv_nsec);
	ok("device-clock");
}

/* Closing a context whose objects are still there leaves them whole. */
static void close_rules(struct ibv_context *context)
{
	static char memory[64];
	struct ibv_context *own = ibv_open_device(context->device);
	struct ibv_pd *pd = ibv_alloc_pd(own);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);

	CHECK("device-close-first", own && own != context && mr && ibv_close_device(own) == 0);
	CHECK("device-close-first", ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	ok("device-close-first");
}

int main(int argc, char **argv)
{
	struct ibv_context *context;

	start(argc, argv);
	context = open_port("mr-rereg");
	PART(rereg_rules(context));
	PART(demand_rules(context));
	PART(domain_rules(context));
	PART(xrcd_rules(context));
	PART(clock_rules(context));
	PART(close_rules(context));
	CHECK("mr-rereg", ibv_close_device(context) == 0);
	return 0;
}
