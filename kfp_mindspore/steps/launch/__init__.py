"""Steps that launch a job or an image build."""
