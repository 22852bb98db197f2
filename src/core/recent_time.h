// How long something that repeats takes, by what it took lately.
#pragma once

namespace kd {

/// A mean with a short memory. A stall (another program, a page read from disk) makes one sample
/// long and says nothing about the next.
class RecentTime {
  public:
    /// At most a factor 2 of the mean so far counts. A time that is not positive and finite is
    /// ignored.
    void observe(double seconds);
    /// The lower of the mean and the last sample, so that the first sample may be a stall too; 0:
    /// none yet.
    double seconds() const;

  private:
    double mean_ = 0;
    double last_ = 0;
};

}  // namespace kd
