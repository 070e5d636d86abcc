#pragma once

namespace regroup::worker {

// c = a · b of square matrices of n rows, in f32, row after row; thread x of all has a column,
// block y a row. As text that any driver since 2019 takes for its own GPU (PTX 6.4, sm_75 and
// later):
//
//   if (column >= n) return;
//   float sum = 0;
//   for (unsigned k = 0; k < n; ++k) sum = fmaf(a[row * n + k], b[k * n + column], sum);
//   c[row * n + column] = sum;
inline constexpr char kProductName[] = "regroup_product";
inline constexpr char kProductPtx[] = R"(.version 6.4
.target sm_75
.address_size 64

.visible .entry regroup_product(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
  .reg .pred %done, %more;
  .reg .f32 %sum, %left, %right;
  .reg .b32 %n, %column, %row, %threads, %block, %thread, %k, %at_a, %at_b, %at_c;
  .reg .b64 %a, %b, %c, %offset, %address;

  ld.param.u64 %a, [a];
  ld.param.u64 %b, [b];
  ld.param.u64 %c, [c];
  ld.param.u32 %n, [n];
  cvta.to.global.u64 %a, %a;
  cvta.to.global.u64 %b, %b;
  cvta.to.global.u64 %c, %c;

  mov.u32 %threads, %ntid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %column, %block, %threads, %thread;
  setp.ge.u32 %done, %column, %n;
  @%done bra END;

  mov.u32 %row, %ctaid.y;
  mul.lo.u32 %at_a, %row, %n;
  mov.u32 %at_b, %column;
  add.u32 %at_c, %at_a, %column;
  mov.f32 %sum, 0f00000000;
  mov.u32 %k, 0;
NEXT:
  mul.wide.u32 %offset, %at_a, 4;
  add.u64 %address, %a, %offset;
  ld.global.f32 %left, [%address];
  mul.wide.u32 %offset, %at_b, 4;
  add.u64 %address, %b, %offset;
  ld.global.f32 %right, [%address];
  fma.rn.f32 %sum, %left, %right, %sum;
  add.u32 %at_a, %at_a, 1;
  add.u32 %at_b, %at_b, %n;
  add.u32 %k, %k, 1;
  setp.lt.u32 %more, %k, %n;
  @%more bra NEXT;

  mul.wide.u32 %offset, %at_c, 4;
  add.u64 %address, %c, %offset;
  st.global.f32 [%address], %sum;
END:
  ret;
}
)";

}  // namespace regroup::worker
