// PyTorch asks the guard of a device which one is current, before it goes on to the operators. This
// one knows two GPUs, of which the first is always current, and neither ever busy. See
// `played_gpu.py`.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::Stream;

const Device kGPU(c10::DeviceType::CUDA, 0);

struct PlayedGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kGPU.type(); }
  Device exchangeDevice(Device) const override { return kGPU; }
  Device getDevice() const override { return kGPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, kGPU); }
  Stream exchangeStream(Stream) const override { return Stream(Stream::DEFAULT, kGPU); }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};

C10_REGISTER_GUARD_IMPL(CUDA, PlayedGuard)

}  // namespace
